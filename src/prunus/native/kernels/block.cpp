#include "block.h"

#include <algorithm>

#include "pool.h"

namespace prunus {
namespace kernels {
namespace {

constexpr int64_t chunk = 64;  // tokens whose inner results stay in the second-level cache
constexpr int64_t few = 8;     // tokens in a task between products

int64_t floats(int64_t count) { return (count + 15) / 16 * 16; }

float *room(Scratch use, int64_t count) { return static_cast<float *>(scratch(use, count * int64_t(sizeof(float)))); }

template <typename F>
void each_few(const Machine &m, int64_t tokens, int64_t count, const F &token) {
    const int threads = tokens * count < (1 << 15) ? 1 : m.threads;
    parallel(threads, (tokens + few - 1) / few, [&](int64_t task) {
        for (int64_t n = task * few; n < std::min(tokens, (task + 1) * few); ++n) token(n);
    });
}

// Tokens by `heads` heads -> heads by tokens, rotated: (a, b) -> (a cos - b sin, b cos + a sin), b half a head further.
// Heads stand `pitch` floats apart.
void spread(const Sequence &s, int64_t heads, int64_t size, const float *from, int64_t sequence, bool turn, float *to,
            int64_t pitch) {
    for (int64_t h = 0; h < heads; ++h)
        for (int64_t i = 0; i < s.length; ++i) {
            const float *at = from + (sequence * s.length + i) * heads * size + h * size;
            float *out = to + (sequence * heads + h) * pitch + i * size;
            if (!turn || !s.cos) {
                std::copy(at, at + size, out);
                continue;
            }
            const float *cos = s.cos + sequence * s.rotation + i * size,
                        *sin = s.sin + sequence * s.rotation + i * size;
            const int64_t half = size / 2;
            for (int64_t c = 0; c < half; ++c) {
                out[c] = at[c] * cos[c] - at[c + half] * sin[c];
                out[c + half] = at[c + half] * cos[c + half] + at[c] * sin[c + half];
            }
        }
}

// The feed-forward of some tokens; `residual` is what its result is added to, `inputs` what it reads.
void feed_forward(const Machine &m, const Block &b, const float *inputs, int64_t tokens, float *out) {
    const int64_t inner = b.up.rows();
    float *mid = room(Scratch::inner, 2 * floats(tokens * inner)), *gate = nullptr;
    Inputs in{m, inputs, b.up.cols(), tokens};
    in(b.up, mid, inner);
    if (b.gate.packed) in(b.gate, gate = mid + floats(tokens * inner), inner);
    each_few(m, tokens, inner * 4, [&](int64_t n) {
        m.blocks.activate(b.activation, mid + n * inner, gate ? gate + n * inner : nullptr, inner);
    });
    Inputs{m, mid, inner, tokens}(b.down, out, b.width());
}

// Everything after attention, for a chunk of tokens. heads: what attention gave.
void finish(const Machine &m, const Block &b, const float *x, const float *heads, int64_t tokens, float *y) {
    const int64_t width = b.width();
    float *sum = room(Scratch::residual, 3 * floats(tokens * width)), *after = sum + floats(tokens * width);
    float *result = after + floats(tokens * width);
    Inputs{m, heads, b.out.cols(), tokens}(b.out, result, width);
    const Norm &norm = b.before ? b.second : b.first;
    each_few(m, tokens, width, [&](int64_t n) {
        m.blocks.normalise(norm, x + n * width, result + n * width, width, sum + n * width, after + n * width);
    });
    feed_forward(m, b, after, tokens, result);
    each_few(m, tokens, width, [&](int64_t n) {
        float *out = y + n * width;
        const float *added = result + n * width;
        if (b.before)
            for (int64_t c = 0; c < width; ++c) out[c] = sum[n * width + c] + added[c];
        else
            m.blocks.normalise(b.second, after + n * width, added, width, sum + n * width, out);
    });
}

}  // namespace

void Inputs::operator()(const Product &p, float *y, int64_t ldy) {
    if (p.integer) {
        if (!bytes.at) bytes = quantise_tokens(m.integers, x, cols, cols, tokens, m.threads);
        return multiply_tokens(m.integers, *p.integer, bytes, tokens, y, ldy, p.bias, false, m.threads);
    }
    linear(m.level, *p.packed, *p.places, x, cols, tokens, y, {p.bias, p.scale, nullptr, false}, m.threads,
           Choice::automatic);
}

void project(const Machine &m, const Block &b, const Sequence &s, const float *x, float *q, float *k, float *v,
             int64_t pitch) {
    const int64_t tokens = s.batch * s.length, width = b.width();
    const int64_t query = b.heads * b.size, key = b.key_heads * b.size;
    float *normed = room(Scratch::residual, floats(tokens * width) + floats(tokens * query) + 2 * floats(tokens * key));
    float *plain_q = normed + floats(tokens * width), *plain_k = plain_q + floats(tokens * query);
    float *plain_v = plain_k + floats(tokens * key);
    if (b.before) {
        each_few(m, tokens, width, [&](int64_t n) {
            m.blocks.normalise(b.first, x + n * width, nullptr, width, nullptr, normed + n * width);
        });
        x = normed;
    }
    Inputs in{m, x, width, tokens};
    in(b.query, plain_q, query), in(b.key, plain_k, key), in(b.value, plain_v, key);
    parallel(tokens * width < (1 << 15) ? 1 : m.threads, s.batch, [&](int64_t n) {
        spread(s, b.heads, b.size, plain_q, n, true, q, s.length * b.size);
        spread(s, b.key_heads, b.size, plain_k, n, true, k, pitch);
        spread(s, b.key_heads, b.size, plain_v, n, false, v, pitch);
    });
}

void attend(const Machine &m, const Block &b, const Sequence &s, const float *x, const float *q, const float *k,
            const float *v, int64_t keys, int64_t pitch, float *y) {
    const int64_t tokens = s.batch * s.length, width = b.width(), wide = b.heads * b.size;
    float *heads = room(Scratch::heads, floats(tokens * wide));
    const int64_t work = s.batch * b.heads * s.length * keys * b.size;
    parallel(work < (1 << 18) ? 1 : m.threads, s.batch * b.heads, [&](int64_t task) {
        const int64_t n = task / b.heads, head = task % b.heads, shared = head / (b.heads / b.key_heads);
        const int64_t at = (n * b.key_heads + shared) * pitch;
        m.blocks.attend({.q = q + task * s.length * b.size,
                         .k = k + at,
                         .v = v + at,
                         .queries = s.length,
                         .keys = keys,
                         .size = b.size,
                         .scaling = b.scaling,
                         .mask = s.mask ? s.mask + n * s.mask_batch + head * s.mask_head : nullptr,
                         .mask_query = s.mask_query,
                         .causal = s.causal,
                         .room = room(Scratch::attention, attention_room(keys, b.size)),
                         .out = heads + n * s.length * wide + head * b.size,
                         .ldo = wide});
    });
    const int64_t chunks = (tokens + chunk - 1) / chunk;
    const bool apart = chunks >= 2 * m.threads;  // then each thread takes whole chunks
    const Machine inside = {m.level, m.integers, m.blocks, apart ? 1 : m.threads};
    parallel(apart ? m.threads : 1, chunks, [&](int64_t i) {
        const int64_t first = tokens * i / chunks, count = tokens * (i + 1) / chunks - first;
        finish(inside, b, x + first * width, heads + first * wide, count, y + first * width);
    });
}

void encode(const Machine &m, const Block &b, const Sequence &s, const float *x, float *y) {
    const int64_t tokens = s.batch * s.length, pitch = s.length * b.size;
    const int64_t query = floats(tokens * b.heads * b.size), key = floats(tokens * b.key_heads * b.size);
    float *q = room(Scratch::projected, query + 2 * key), *k = q + query, *v = k + key;
    project(m, b, s, x, q, k, v, pitch);
    attend(m, b, s, x, q, k, v, s.length, pitch, y);
}

void extend(const Machine &m, const Block &b, const Sequence &s, const float *x, float *k, float *v, int64_t filled,
            int64_t capacity, float *y) {
    float *q = room(Scratch::projected, floats(s.batch * s.length * b.heads * b.size));
    const int64_t pitch = capacity * b.size;
    project(m, b, s, x, q, k + filled * b.size, v + filled * b.size, pitch);
    attend(m, b, s, x, q, k, v, filled + s.length, pitch, y);
}

void embed(const Machine &m, const Embedding &e, const int64_t *ids, const int64_t *kinds, int64_t batch,
           int64_t length, float *y) {
    each_few(m, batch * length, e.width, [&](int64_t n) {
        const float *const parts[] = {e.words + ids[n] * e.width, e.kinds + (kinds ? kinds[n] * e.width : 0),
                                      e.positions + n % length * e.width};
        float *out = y + n * e.width;
        for (int64_t c = 0; c < e.width; ++c) out[c] = parts[0][c] + parts[1][c] + parts[2][c];
        m.blocks.normalise(e.norm, out, nullptr, e.width, out, out);
    });
}

}  // namespace kernels
}  // namespace prunus
