// A transformer's block in one run: attention, norms, activations and residual sums around packed linear layers.
#pragma once

#include <cstdint>

#include "integer.h"
#include "run.h"

namespace prunus {
namespace kernels {

enum class Activation : int { relu = 0, gelu = 1, gelu_tanh = 2, silu = 3 };

// A packed linear layer; with `integer` its products are integers.
struct Product {
    const Packed *packed = nullptr;
    Places *places = nullptr;
    const float *scale = nullptr, *bias = nullptr;
    const IntegerMatrix *integer = nullptr;
    int64_t rows() const { return packed->rows; }
    int64_t cols() const { return packed->cols; }
};

// LayerNorm, or without means and bias RMSNorm.
struct Norm {
    const float *weight = nullptr, *bias = nullptr;
    float eps = 0.0f;
    bool rms = false;
};

struct Block {
    Product query, key, value, out, up, gate, down;  // gate may be missing: its packed is null
    Norm first, second;
    bool before;  // the norms stand before attention and feed-forward, otherwise after their residual sums
    Activation activation;
    int64_t heads, key_heads, size;  // size of a head
    float scaling;                   // of the scores
    int64_t width() const { return out.rows(); }
};

// What the queries of one block see. Rotations: cos and sin (length x size) of each sequence, or null. The mask is added
// to the scores; its strides may be zero.
struct Sequence {
    int64_t batch, length;
    const float *cos, *sin;
    int64_t rotation;  // floats from one sequence to the next
    const float *mask;
    int64_t mask_batch, mask_head, mask_query;
    bool causal;  // query i sees the keys up to i, counted so that the last query sees all
};

// One head of one sequence: out[query] = softmax(q k^T * scaling + mask) v.
struct Attention {
    const float *q, *k, *v;  // rows of `size`
    int64_t queries, keys, size;
    float scaling;
    const float *mask;
    int64_t mask_query;
    bool causal;
    float *room;  // attention_room floats
    float *out;
    int64_t ldo;
};

// A step of an LSTM or a GRU for one sample: `gates` is the inputs' share, `more` the state's, each `count` numbers for
// every gate (input, forget, cell, output; reset, update, new).
struct Cell {
    const float *gates, *more;
    float *h, *c;  // c is null for a GRU
    int64_t count;
};

struct BlockLevel {
    void (*attend)(const Attention &);
    // x = act(x), or act(gate) * x.
    void (*activate)(Activation, float *x, const float *gate, int64_t count);
    // sum = x + added (where given), out = norm(sum); sum may be null, and in place of x.
    void (*normalise)(const Norm &, const float *x, const float *added, int64_t count, float *sum, float *out);
    void (*lstm)(const Cell &);
    void (*gru)(const Cell &);
};

const BlockLevel &portable_blocks();
const BlockLevel &avx2_blocks();
const BlockLevel &neon_blocks();

struct Machine {
    const Level &level;
    const IntegerLevel &integers;
    const BlockLevel &blocks;
    int threads;
};

// Layers that read the same inputs (tokens x cols), which are quantised once: y (tokens x rows) of each.
struct Inputs {
    const Machine &m;
    const float *x;
    int64_t cols, tokens;
    Quantised bytes{};

    void operator()(const Product &, float *y, int64_t ldy);
};

// Queries, keys and values of x (batch x length x width), rotated: batch x heads x length x size each. The heads of keys
// and values stand `pitch` floats apart.
void project(const Machine &, const Block &, const Sequence &, const float *x, float *q, float *k, float *v,
             int64_t pitch);

// The rest of the block: q, k and v as `project` gives them, with so many keys.
void attend(const Machine &, const Block &, const Sequence &, const float *x, const float *q, const float *k,
            const float *v, int64_t keys, int64_t pitch, float *y);

// Both, where keys and values are those of x itself.
void encode(const Machine &, const Block &, const Sequence &, const float *x, float *y);

// Both, with a room (batch x key_heads x capacity x size) whose first `filled` keys and values come before those of x,
// which are written behind them.
void extend(const Machine &, const Block &, const Sequence &, const float *x, float *k, float *v, int64_t filled,
            int64_t capacity, float *y);

// Words, positions (from zero on) and kinds, summed and normalised: y (batch x length x width).
struct Embedding {
    const float *words, *positions, *kinds;
    int64_t width;
    Norm norm;
};
void embed(const Machine &, const Embedding &, const int64_t *ids, const int64_t *kinds, int64_t batch, int64_t length,
           float *y);

inline int64_t attention_room(int64_t keys, int64_t size) {
    const int64_t padded = (keys + 15) / 16 * 16;
    return padded * ((size + 15) / 16 * 16 + size + 4) + 64;
}

}  // namespace kernels
}  // namespace prunus
