// What a block does between its products, on registers of eight floats. Included once for each instruction set, which
// gives multiply_add(a, b, c) = a * b + c, and larger(a, b) and smaller(a, b), which are b where one is NaN.

typedef float vec __attribute__((vector_size(32)));
typedef float loose __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(32)));
constexpr int64_t W = 8;

inline vec load(const float *p) { return *reinterpret_cast<const loose *>(p); }
inline void store(float *p, vec v) { *reinterpret_cast<loose *>(p) = v; }
inline vec all(float v) { return v - vec{}; }
inline float total(vec v) {
    const float a = v[0] + v[4], b = v[1] + v[5], c = v[2] + v[6], d = v[3] + v[7];
    return (a + c) + (b + d);
}

// e^x, relative error below 3e-7. Below -87 it stays at e^-87, above 88 at e^88; NaN stays NaN.
inline vec exponential(vec x) {
    x = smaller(all(88.0f), larger(all(-87.0f), x));
    const vec magic = all(12582912.0f);  // 1.5 * 2^23: adding it rounds
    const vec n = multiply_add(x, all(1.44269504f), magic) - magic;
    const vec r = multiply_add(n, all(-1.42860677e-6f), multiply_add(n, all(-0.693145752f), x));
    vec p = all(1.0f / 720.0f);
    p = multiply_add(p, r, all(1.0f / 120.0f)), p = multiply_add(p, r, all(1.0f / 24.0f));
    p = multiply_add(p, r, all(1.0f / 6.0f)), p = multiply_add(p, r, all(0.5f));
    p = multiply_add(p, r, all(1.0f)), p = multiply_add(p, r, all(1.0f));
    return p * (vec)((__builtin_convertvector(n, ivec) + 127) << 23);
}

// x P(x^2) / Q(x^2), fitted on |x| < 3.9; the absolute error is below 4e-7.
inline vec error_function(vec x) {
    x = smaller(all(3.9f), larger(all(-3.9f), x));
    const vec t = x * x;
    vec p = all(2.01188524e-8f), q = all(0.00100662292f);
    p = multiply_add(p, t, all(-1.99694682e-6f)), p = multiply_add(p, t, all(0.000147477273f));
    p = multiply_add(p, t, all(0.00389635167f)), p = multiply_add(p, t, all(0.0511491038f));
    p = multiply_add(p, t, all(0.20422639f)), p = multiply_add(p, t, all(1.12837875f));
    q = multiply_add(q, t, all(0.0147306267f)), q = multiply_add(q, t, all(0.116786137f));
    q = multiply_add(q, t, all(0.514319956f)), q = multiply_add(q, t, all(1.0f));
    return x * p / q;
}

inline vec activated(Activation kind, vec x) {
    switch (kind) {
        case Activation::relu: return x < 0.0f ? vec{} : x;
        case Activation::gelu: return 0.5f * x * (1.0f + error_function(x * 0.70710678f));
        case Activation::gelu_tanh: {  // tanh(z) = 1 - 2 / (e^2z + 1)
            const vec twice = 1.59576912f * (x + 0.044715f * x * x * x);
            return x * (1.0f - 1.0f / (exponential(twice) + 1.0f));
        }
        case Activation::silu: return x / (1.0f + exponential(-x));
    }
    return x;
}

inline vec sigmoid(vec x) { return 1.0f / (1.0f + exponential(-x)); }
// Where x is small the quotient loses digits: x - x^3/3 + 2 x^5/15 is exact enough there.
inline vec tangent(vec x) {
    const vec far = 1.0f - 2.0f / (exponential(x + x) + 1.0f), square = x * x;
    const vec near = x * (1.0f - square * (0.333333333f - 0.133333333f * square));
    return square < 0.0025f ? near : far;
}

// `count` of them, the last ones through a register of their own.
template <typename F>
inline void each(int64_t count, const F &eight) {
    int64_t i = 0;
    for (; i + W <= count; i += W) eight(i, W);
    if (i < count) eight(i, count - i);
}
inline vec load_some(const float *p, int64_t count) {
    if (count == W) return load(p);
    float room[W] = {};
    for (int64_t i = 0; i < count; ++i) room[i] = p[i];
    return load(room);
}
inline void store_some(float *p, vec v, int64_t count) {
    if (count == W) return store(p, v);
    for (int64_t i = 0; i < count; ++i) p[i] = v[i];
}

template <Activation kind>
void activate_all(float *x, const float *gate, int64_t count) {
    each(count, [&](int64_t i, int64_t n) {
        const vec value = load_some(x + i, n);
        store_some(x + i, gate ? activated(kind, load_some(gate + i, n)) * value : activated(kind, value), n);
    });
}

void activate(Activation kind, float *x, const float *gate, int64_t count) {
    switch (kind) {
        case Activation::relu: return activate_all<Activation::relu>(x, gate, count);
        case Activation::gelu: return activate_all<Activation::gelu>(x, gate, count);
        case Activation::gelu_tanh: return activate_all<Activation::gelu_tanh>(x, gate, count);
        case Activation::silu: return activate_all<Activation::silu>(x, gate, count);
    }
}

void normalise(const Norm &norm, const float *x, const float *added, int64_t count, float *sum, float *out) {
    if (added) {
        each(count,
             [&](int64_t i, int64_t n) { store_some(sum + i, load_some(x + i, n) + load_some(added + i, n), n); });
        x = sum;
    } else if (sum && sum != x) {
        std::copy(x, x + count, sum);
    }
    float mean = 0.0f;
    if (!norm.rms) {
        vec parts = {};
        each(count, [&](int64_t i, int64_t n) { parts += load_some(x + i, n); });
        mean = total(parts) / float(count);
    }
    vec squares = {};
    each(count, [&](int64_t i, int64_t n) {
        vec off = load_some(x + i, n) - mean;
        for (int64_t j = n; j < W; ++j) off[j] = 0.0f;
        squares += off * off;
    });
    const float scale = 1.0f / std::sqrt(total(squares) / float(count) + norm.eps);
    each(count, [&](int64_t i, int64_t n) {
        vec value = (load_some(x + i, n) - mean) * scale;
        if (norm.weight) value *= load_some(norm.weight + i, n);
        if (norm.bias) value += load_some(norm.bias + i, n);
        store_some(out + i, value, n);
    });
}

// Turns a row of scores into e^(score - largest), those after `seen` into next to nothing; returns one over their sum.
inline float soften(float *scores, int64_t seen, int64_t padded) {
    const float lowest = -std::numeric_limits<float>::infinity();
    for (int64_t j = seen; j < padded; ++j) scores[j] = lowest;
    vec most = load(scores);
    for (int64_t j = W; j < padded; j += W) most = larger(most, load(scores + j));
    float top = most[0];
    for (int i = 1; i < W; ++i) top = most[i] > top ? most[i] : top;
    if (top == lowest) {  // nothing is seen: zeros, as torch has it
        std::fill(scores, scores + padded, 0.0f);
        return 0.0f;
    }
    vec sum = {};
    for (int64_t j = 0; j < padded; j += W) {
        const vec e = exponential(load(scores + j) - top);
        sum += e, store(scores + j, e);
    }
    return 1.0f / total(sum);
}

// sum[i] += sum over k of left[i][k] * right[k]: R rows by two registers of columns.
template <int R>
inline void products(const float *left, int64_t left_row, const float *right, int64_t right_row, int64_t count,
                     vec (&sum)[R][2]) {
    for (int64_t k = 0; k < count; ++k, right += right_row) {
        const vec a = load(right), b = load(right + W);
#pragma GCC unroll 4
        for (int i = 0; i < R; ++i) {
            const vec value = all(left[i * left_row + k]);
            sum[i][0] = multiply_add(value, a, sum[i][0]), sum[i][1] = multiply_add(value, b, sum[i][1]);
        }
    }
}

// Scores of R queries against all keys, from keys that stand column by column.
template <int R>
inline void score(const float *q, int64_t size, const float *columns, int64_t padded, float scaling, float *scores) {
    for (int64_t j = 0; j < padded; j += 2 * W) {
        vec sum[R][2] = {};
        products(q, size, columns + j, padded, size, sum);
#pragma GCC unroll 4
        for (int i = 0; i < R; ++i)
            store(scores + i * padded + j, sum[i][0] * scaling),
                store(scores + i * padded + j + W, sum[i][1] * scaling);
    }
}

// The same for a few queries, whose keys are not worth turning.
inline void score_rows(const float *q, int64_t size, const float *k, int64_t keys, float scaling, float *scores) {
    for (int64_t j = 0; j < keys; ++j, k += size) {
        vec sum = {};
        each(size, [&](int64_t c, int64_t n) { sum = multiply_add(load_some(q + c, n), load_some(k + c, n), sum); });
        scores[j] = total(sum) * scaling;
    }
}

// out[i] = inverse[i] * sum over keys of scores[i][key] * v[key], v padded to 16 columns.
template <int R>
inline void weigh(const float *scores, const float *inverse, int64_t padded, int64_t seen, const float *v, int64_t wide,
                  int64_t size, float *out, int64_t ldo) {
    for (int64_t c = 0; c < size; c += 2 * W) {
        vec sum[R][2] = {};
        products(scores, padded, v + c, wide, seen, sum);
#pragma GCC unroll 4
        for (int i = 0; i < R; ++i) {
            store_some(out + i * ldo + c, sum[i][0] * inverse[i], std::min(W, size - c));
            if (c + W < size) store_some(out + i * ldo + c + W, sum[i][1] * inverse[i], std::min(W, size - c - W));
        }
    }
}

void attend_head(const Attention &a) {
    const int64_t padded = (a.keys + 2 * W - 1) / (2 * W) * 2 * W, wide = (a.size + 2 * W - 1) / (2 * W) * 2 * W;
    float *scores = a.room, *values = scores + 4 * padded, *columns = values + padded * wide;
    const bool turned = a.queries >= 4;
    if (turned) {
        for (int64_t c = 0; c < a.size; ++c) {
            for (int64_t j = 0; j < a.keys; ++j) columns[c * padded + j] = a.k[j * a.size + c];
            std::fill(columns + c * padded + a.keys, columns + (c + 1) * padded, 0.0f);
        }
    }
    const float *v = a.v;
    if (wide != a.size) {
        for (int64_t j = 0; j < a.keys; ++j) {
            std::copy(a.v + j * a.size, a.v + (j + 1) * a.size, values + j * wide);
            std::fill(values + j * wide + a.size, values + (j + 1) * wide, 0.0f);
        }
        v = values;
    }
    for (int64_t i = 0; i < a.queries;) {
        float inverse[4];
        const int rows = turned && a.queries - i >= 4 ? 4 : 1;
        if (rows == 4)
            score<4>(a.q + i * a.size, a.size, columns, padded, a.scaling, scores);
        else if (turned)
            score<1>(a.q + i * a.size, a.size, columns, padded, a.scaling, scores);
        else
            score_rows(a.q + i * a.size, a.size, a.k, a.keys, a.scaling, scores);
        for (int r = 0; r < rows; ++r) {
            float *row = scores + r * padded;
            const float *mask = a.mask ? a.mask + (i + r) * a.mask_query : nullptr;
            const int64_t seen = a.causal ? a.keys - a.queries + i + r + 1 : a.keys;
            if (mask)
                each(seen, [&](int64_t j, int64_t n) {
                    store_some(row + j, load_some(row + j, n) + load_some(mask + j, n), n);
                });
            inverse[r] = soften(row, seen, padded);
        }
        if (rows == 4)
            weigh<4>(scores, inverse, padded, a.keys, v, wide, a.size, a.out + i * a.ldo, a.ldo);
        else
            weigh<1>(scores, inverse, padded, a.keys, v, wide, a.size, a.out + i * a.ldo, a.ldo);
        i += rows;
    }
}

void lstm_cell(const Cell &cell) {
    const int64_t count = cell.count;
    each(count, [&](int64_t i, int64_t n) {
        const auto gate = [&](int64_t k) {
            return load_some(cell.gates + k * count + i, n) + load_some(cell.more + k * count + i, n);
        };
        const vec c = sigmoid(gate(1)) * load_some(cell.c + i, n) + sigmoid(gate(0)) * tangent(gate(2));
        store_some(cell.c + i, c, n);
        store_some(cell.h + i, sigmoid(gate(3)) * tangent(c), n);
    });
}

void gru_cell(const Cell &cell) {
    const int64_t count = cell.count;
    each(count, [&](int64_t i, int64_t n) {
        const auto part = [&](const float *of, int64_t k) { return load_some(of + k * count + i, n); };
        const vec reset = sigmoid(part(cell.gates, 0) + part(cell.more, 0));
        const vec update = sigmoid(part(cell.gates, 1) + part(cell.more, 1));
        const vec fresh = tangent(part(cell.gates, 2) + reset * part(cell.more, 2));
        store_some(cell.h + i, fresh + update * (load_some(cell.h + i, n) - fresh), n);
    });
}

// The table of this instruction set.
constexpr BlockLevel block_level = {
    .attend = attend_head, .activate = activate, .normalise = normalise, .lstm = lstm_cell, .gru = gru_cell};
