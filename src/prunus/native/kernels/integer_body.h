// Integer products on 256-bit registers. Included once for each instruction set, which gives `dot(sum, inputs, weights)`:
// the sum of four products of bytes in each 32-bit lane, added to `sum`.

#include "integer_sums.h"

inline __m256i first_lanes(int64_t count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(int(count < 8 ? count : 8)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline __m256 load_up_to(const float *at, int64_t count) {
    return count >= 8 ? _mm256_loadu_ps(at) : _mm256_maskload_ps(at, first_lanes(count));
}

// Zero times each number, added up: NaN as soon as one is not finite. Four ways, so that no sum waits for the one before.
struct Wild {
    static constexpr int ways = 4;
    __m256 sum[ways] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    void see(int way, __m256 v) { sum[way] = _mm256_fmadd_ps(v, _mm256_setzero_ps(), sum[way]); }
    bool found() const {
        const __m256 all = _mm256_add_ps(_mm256_add_ps(sum[0], sum[1]), _mm256_add_ps(sum[2], sum[3]));
        return _mm256_movemask_ps(_mm256_cmp_ps(all, all, _CMP_UNORD_Q)) != 0;
    }
};

void measure(const float *x, int64_t count, Range &range) {
    constexpr int ways = Wild::ways;
    __m256 low[ways], high[ways];
    Wild wild;
    for (int k = 0; k < ways; ++k) low[k] = _mm256_set1_ps(range.low), high[k] = _mm256_set1_ps(range.high);
    const auto see = [&](int k, __m256 v) {
        wild.see(k, v);
        low[k] = _mm256_min_ps(v, low[k]), high[k] = _mm256_max_ps(v, high[k]);  // in this order NaN leaves them alone
    };
    int64_t i = 0;
    for (; i + 8 * ways <= count; i += 8 * ways)
#pragma GCC unroll 4
        for (int k = 0; k < ways; ++k) see(k, _mm256_loadu_ps(x + i + 8 * k));
    for (; i < count; i += 8) see(0, load_up_to(x + i, count - i));
    range.wild |= wild.found();
    for (int k = 0; k < ways; ++k) {
        alignas(32) float lows[8], highs[8];
        _mm256_store_ps(lows, low[k]), _mm256_store_ps(highs, high[k]);
        for (int j = 0; j < 8; ++j) {
            range.low = lows[j] < range.low ? lows[j] : range.low;
            range.high = highs[j] > range.high ? highs[j] : range.high;
        }
    }
}

// Floats to bytes: what lies outside of the range is moved to its ends.
struct Rounding {
    const __m256 inverse, most;
    const __m256i zero;
    explicit Rounding(const Grid &g)
        : inverse(_mm256_set1_ps(g.inverse)),
          most(_mm256_set1_ps(float(top - g.step.zero))),
          zero(_mm256_set1_epi16(int16_t(g.step.zero))) {}
    // `inside`: numbers of the range alone, of which the largest may come out one too large.
    template <bool inside = false>
    __m256i whole(__m256 v) const {
        const __m256 scaled = _mm256_mul_ps(v, inverse);
        return _mm256_cvtps_epi32(inside ? scaled : _mm256_min_ps(scaled, most));
    }
    // Sixteen numbers as 16 bits, four of each register in turn; below the range they may be any negative number.
    template <bool inside = false>
    __m256i words(__m256 a, __m256 b) const {
        return _mm256_adds_epi16(_mm256_packs_epi32(whole<inside>(a), whole<inside>(b)), zero);
    }
    // Thirty-two numbers as bytes; in turn: 0-3 and 16-19, 4-7 and 20-23, and so on.
    __m256i in_turn(const __m256 (&v)[4]) const { return _mm256_packus_epi16(words(v[0], v[1]), words(v[2], v[3])); }
    template <bool inside = false>
    __m256i in_order(const __m256 (&v)[4]) const {
        const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7), last = _mm256_set1_epi8(top);
        const __m256i bytes = _mm256_packus_epi16(words<inside>(v[0], v[1]), words<inside>(v[2], v[3]));
        return _mm256_permutevar8x32_epi32(inside ? _mm256_min_epu8(bytes, last) : bytes, order);
    }
};

template <bool inside>
inline bool some_to_bytes(const float *x, int64_t count, const Grid &grid, uint8_t *out) {
    const Rounding rounding(grid);
    Wild wild;
    const auto bytes = [&](const __m256(&v)[4]) {
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k)
            if (!inside) wild.see(k, v[k]);
        return rounding.in_order<inside>(v);
    };
    int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
        const __m256 v[] = {_mm256_loadu_ps(x + i), _mm256_loadu_ps(x + i + 8), _mm256_loadu_ps(x + i + 16),
                            _mm256_loadu_ps(x + i + 24)};
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(out + i), bytes(v));
    }
    if (i < count) {
        __m256 left[4];
        for (int k = 0; k < 4; ++k)
            left[k] = count - i > 8 * k ? load_up_to(x + i + 8 * k, count - i - 8 * k) : _mm256_setzero_ps();
        alignas(32) uint8_t rest[32];
        _mm256_store_si256(reinterpret_cast<__m256i *>(rest), bytes(left));
        std::memcpy(out + i, rest, size_t(count - i));
    }
    return inside || !wild.found();
}

bool to_bytes(const float *x, int64_t count, const Grid &grid, uint8_t *out) {
    const bool finite =
        grid.inside ? grid.flat || some_to_bytes<true>(x, count, grid, out) : some_to_bytes<false>(x, count, grid, out);
    if (grid.flat) std::memset(out, 0, size_t(count));
    return finite;
}

// Sixteen numbers in the order of the sums: rows 0-3 and 8-11, rows 4-7 and 12-15. Applied twice it is undone.
struct Rows {
    __m256 at[2];
    Rows(__m256 a, __m256 b) : at{_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31)} {}
    Rows(const float *from, int64_t rows)
        : Rows(load_up_to(from, rows), rows > 8 ? load_up_to(from + 8, rows - 8) : _mm256_setzero_ps()) {}
};

// What all tokens of a task share.
struct Shared {
    Rows scale, bias, sum;  // the sums of weights as bits
    __m256i start[2];       // of the sums
    Shared(const IntegerTask &t, bool one_step)
        : scale(t.scale, lanes),
          bias(t.bias ? Rows(t.bias, t.rows) : Rows(_mm256_setzero_ps(), _mm256_setzero_ps())),
          sum(reinterpret_cast<const float *>(t.sum), lanes) {
        for (int half = 0; half < 2; ++half) {
            start[half] = _mm256_setzero_si256();
            if (!one_step) continue;
            start[half] = _mm256_sub_epi32(start[half], offset(half, t.step[0]));
            scale.at[half] = scaled(half, t.step[0]);
        }
    }
    __m256i offset(int half, const Step &step) const {
        return _mm256_mullo_epi32(_mm256_castps_si256(sum.at[half]), _mm256_set1_epi32(step.zero));
    }
    __m256 scaled(int half, const Step &step) const { return _mm256_mul_ps(_mm256_set1_ps(step.step), scale.at[half]); }
};

inline void store_rows(float *out, const Rows &value, int64_t rows) {
    const Rows ordered(value.at[0], value.at[1]);
    if (rows == lanes) {
        _mm256_storeu_ps(out, ordered.at[0]), _mm256_storeu_ps(out + 8, ordered.at[1]);
        return;
    }
    _mm256_maskstore_ps(out, first_lanes(rows), ordered.at[0]);
    if (rows > 8) _mm256_maskstore_ps(out + 8, first_lanes(rows - 8), ordered.at[1]);
}

// The sums of S tokens become numbers. `step` and `out` are those of the first.
template <int S, bool one_step>
inline void end(const IntegerTask &t, const Step *step, float *out, const Shared &shared, const Sums<S> &sums) {
#pragma GCC unroll 8
    for (int n = 0; n < S; ++n) {
        Rows value = shared.bias;
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            __m256i sum = sums.at[n][half];
            if (!one_step) sum = _mm256_sub_epi32(sum, shared.offset(half, step[n]));
            const __m256 scale = one_step ? shared.scale.at[half] : shared.scaled(half, step[n]);
            value.at[half] = _mm256_add_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(sum), scale), value.at[half]);
        }
        if (t.relu) {  // in this order it keeps NaN
            value.at[0] = _mm256_max_ps(_mm256_setzero_ps(), value.at[0]);
            value.at[1] = _mm256_max_ps(_mm256_setzero_ps(), value.at[1]);
        }
        store_rows(out + n * t.out_token, value, t.rows);
    }
}

template <int S, bool one_step>
inline void tokens_at_once(const IntegerTask &t, int64_t line, int token, const Shared &shared) {
    Sums<S> sums;
    add_up<S>(t, t.x + line * t.line + token * t.pitch, shared.start, sums);
    end<S, one_step>(t, one_step ? t.step : t.step + token, t.out + line * t.out_line + token * t.out_token, shared,
                     sums);
}

template <bool one_step>
inline void all_lines(const IntegerTask &t) {
    const Shared shared(t, one_step);
    for (int64_t i = 0; i < t.lines; ++i) {
        int n = 0;
        for (; n + 4 <= t.tokens; n += 4) tokens_at_once<4, one_step>(t, i, n, shared);
        if (t.tokens - n == 3) tokens_at_once<3, one_step>(t, i, n, shared);
        if (t.tokens - n == 2) tokens_at_once<2, one_step>(t, i, n, shared);
        if (t.tokens - n == 1) tokens_at_once<1, one_step>(t, i, n, shared);
    }
}

// One token and two groups that read the same places.
inline void both_groups(const IntegerTask &t) {
    const IntegerTask *const tasks[] = {&t, t.twin};
    Sums<2> sums;
    add_up_twins(t, *t.twin, sums);
#pragma GCC unroll 2
    for (int g = 0; g < 2; ++g) {
        const IntegerTask &own = *tasks[g];
        end<1, false>(own, own.step, own.out, Shared(own, false), {{{sums.at[g][0], sums.at[g][1]}}});
    }
}

void multiply(const IntegerTask &t) {
    if (t.twin) return both_groups(t);
    return t.one_step ? all_lines<true>(t) : all_lines<false>(t);
}

#include "integer_planes_body.h"
#include "integer_turned_body.h"
