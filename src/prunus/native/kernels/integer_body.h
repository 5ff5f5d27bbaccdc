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
};

template <bool inside>
inline bool some_to_bytes(const float *x, int64_t count, const Grid &grid, uint8_t *out) {
    const Rounding rounding(grid);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7), last = _mm256_set1_epi8(top);
    Wild wild;
    const auto bytes = [&](__m256 a, __m256 b, __m256 c, __m256 d) {
        if (!inside) wild.see(0, a), wild.see(1, b), wild.see(2, c), wild.see(3, d);
        const __m256i four = _mm256_packus_epi16(rounding.words<inside>(a, b), rounding.words<inside>(c, d));
        return _mm256_permutevar8x32_epi32(inside ? _mm256_min_epu8(four, last) : four, order);
    };
    int64_t i = 0;
    for (; i + 32 <= count; i += 32)
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(out + i),
                            bytes(_mm256_loadu_ps(x + i), _mm256_loadu_ps(x + i + 8), _mm256_loadu_ps(x + i + 16),
                                  _mm256_loadu_ps(x + i + 24)));
    if (i < count) {
        __m256 left[4];
        for (int k = 0; k < 4; ++k)
            left[k] = count - i > 8 * k ? load_up_to(x + i + 8 * k, count - i - 8 * k) : _mm256_setzero_ps();
        alignas(32) uint8_t rest[32];
        _mm256_store_si256(reinterpret_cast<__m256i *>(rest), bytes(left[0], left[1], left[2], left[3]));
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

// Sixteen pixels of sixteen channels: four channels of a pixel become four bytes side by side, then sixteen. Sixteen,
// because the rows of an image often lie a power of two apart, and a line of the cache is then soon pushed out.
template <bool inside, int sides>
inline void block_to_bytes(const float *x, int64_t plane, int64_t channels, int64_t left, const Rounding &rounding,
                           Wild &wild, __m128i (&out)[16]) {
    const __m256i across = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 0, 4, 8, 12, 1, 5, 9,
                                            13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m256i four[2][4];
#pragma GCC unroll 1
    for (int k = 0; k < 4; ++k, x += 4 * plane)
#pragma GCC unroll 2
        for (int side = 0; side < sides; ++side) {
            __m256 v[4];
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j) {
                const bool there = 4 * k + j < channels && left > 8 * side;
                v[j] = there ? load_up_to(x + j * plane + 8 * side, left - 8 * side) : _mm256_setzero_ps();
                if (!inside) wild.see(j, v[j]);
            }
            __m256i bytes = _mm256_packus_epi16(rounding.words<inside>(v[0], v[1]), rounding.words<inside>(v[2], v[3]));
            if (inside) bytes = _mm256_min_epu8(bytes, _mm256_set1_epi8(top));
            four[side][k] = _mm256_shuffle_epi8(bytes, across);
        }
#pragma GCC unroll 2
    for (int side = 0; side < sides; ++side)
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            const __m256i *f = four[side];
            const __m256i a = half ? _mm256_unpackhi_epi32(f[0], f[1]) : _mm256_unpacklo_epi32(f[0], f[1]);
            const __m256i b = half ? _mm256_unpackhi_epi32(f[2], f[3]) : _mm256_unpacklo_epi32(f[2], f[3]);
            const __m256i even = _mm256_unpacklo_epi64(a, b), odd = _mm256_unpackhi_epi64(a, b);
            __m128i *to = out + 8 * side + 2 * half;
            to[0] = _mm256_castsi256_si128(even), to[4] = _mm256_extracti128_si256(even, 1);
            to[1] = _mm256_castsi256_si128(odd), to[5] = _mm256_extracti128_si256(odd, 1);
        }
}

template <bool inside>
inline bool some_planes(const float *x, int64_t plane, int64_t channels, int64_t count, const Grid &grid, uint8_t *out,
                        int64_t pitch) {
    const Rounding rounding(grid);
    const bool room = pitch % 16 == 0 || channels <= 16;  // for whole registers
    Wild wild;
    for (int64_t i = 0; i < count; i += 16)
        for (int64_t c = 0; c < (channels < pitch ? pitch : channels); c += 16) {
            const int64_t left = count - i < 16 ? count - i : 16;
            const float *at = x + c * plane + i;
            __m128i r[16];
            if (left == 16 && channels - c >= 16)
                block_to_bytes<inside, 2>(at, plane, 16, 16, rounding, wild, r);
            else if (left == 8 && channels - c >= 16)
                block_to_bytes<inside, 1>(at, plane, 16, 8, rounding, wild, r);
            else
                block_to_bytes<inside, 2>(at, plane, channels - c, left, rounding, wild, r);
            uint8_t *to = out + i * pitch + c;
            const size_t bytes = size_t(room || channels - c >= 16 ? 16 : channels - c);
#pragma GCC unroll 16
            for (int k = 0; k < 16; ++k) {
                if (k >= left) break;
                if (bytes == 16)
                    _mm_storeu_si128(reinterpret_cast<__m128i *>(to + k * pitch), r[k]);
                else
                    std::memcpy(to + k * pitch, &r[k], bytes);
            }
        }
    return inside || !wild.found();
}

bool planes_to_bytes(const float *x, int64_t plane, int64_t channels, int64_t count, const Grid &grid, uint8_t *out,
                     int64_t pitch) {
    if (!grid.flat)
        return grid.inside ? some_planes<true>(x, plane, channels, count, grid, out, pitch)
                           : some_planes<false>(x, plane, channels, count, grid, out, pitch);
    Wild wild;
    for (int64_t c = 0; c < channels; ++c)
        for (int64_t i = 0; i < count; i += 8) wild.see(0, load_up_to(x + c * plane + i, count - i));
    for (int64_t i = 0; i < count; ++i) std::memset(out + i * pitch, 0, size_t(channels < pitch ? pitch : channels));
    return !wild.found();
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
    Rounding rounding;
    __m256i start[2];  // of the sums
    Shared(const IntegerTask &t, bool one_step)
        : scale(t.scale, lanes),
          bias(t.bias ? Rows(t.bias, t.rows) : Rows(_mm256_setzero_ps(), _mm256_setzero_ps())),
          sum(reinterpret_cast<const float *>(t.sum), lanes),
          rounding(t.grid ? *t.grid : Grid{}) {
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

struct Line {
    const uint8_t *x;
    float *out;
    const float *other;
    uint8_t *bytes;
    const Step *step;
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

// The sums of S tokens become numbers, and these bytes.
template <int S, bool one_step>
inline void end(const IntegerTask &t, const Line &line, int token, const Shared &shared, const Sums<S> &sums,
                Wild &wild) {
    __m256i words[S + 1];
#pragma GCC unroll 8
    for (int n = 0; n < S; ++n) {
        Rows value = shared.bias;
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            __m256i sum = sums.at[n][half];
            if (!one_step) sum = _mm256_sub_epi32(sum, shared.offset(half, line.step[token + n]));
            const __m256 scale = one_step ? shared.scale.at[half] : shared.scaled(half, line.step[token + n]);
            value.at[half] = _mm256_add_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(sum), scale), value.at[half]);
        }
        if (line.other) {
            const Rows other(line.other + (token + n) * t.other_token, t.rows);
            value.at[0] = _mm256_add_ps(value.at[0], other.at[0]),
            value.at[1] = _mm256_add_ps(value.at[1], other.at[1]);
        }
        if (t.relu) {  // in this order it keeps NaN
            value.at[0] = _mm256_max_ps(_mm256_setzero_ps(), value.at[0]);
            value.at[1] = _mm256_max_ps(_mm256_setzero_ps(), value.at[1]);
        }
        if (line.out) store_rows(line.out + (token + n) * t.out_token, value, t.rows);
        if (line.bytes) {
            wild.see(n % 2 * 2, value.at[0]), wild.see(n % 2 * 2 + 1, value.at[1]);
            words[n] = shared.rounding.words(value.at[0], value.at[1]);
        }
    }
    if (!line.bytes) return;
    words[S] = words[S - 1];
#pragma GCC unroll 8
    for (int n = 0; n < S; n += 2) {
        const __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi16(words[n], words[n + 1]), 0xD8);
        uint8_t *to = line.bytes + (token + n) * t.bytes_token;
        _mm_storeu_si128(reinterpret_cast<__m128i *>(to), _mm256_castsi256_si128(both));
        if (n + 1 < S)
            _mm_storeu_si128(reinterpret_cast<__m128i *>(to + t.bytes_token), _mm256_extracti128_si256(both, 1));
    }
}

template <int S, bool one_step>
inline void tokens_at_once(const IntegerTask &t, const Line &line, int token, const Shared &shared, Wild &wild) {
    Sums<S> sums;
    add_up<S>(t, line.x + token * t.pitch, shared.start, sums);
    end<S, one_step>(t, line, token, shared, sums, wild);
}

template <bool one_step>
inline void all_lines(const IntegerTask &t) {
    const Shared shared(t, one_step);
    Wild wild;
    Line line = {t.x, t.out, t.other, t.bytes, t.step};
    for (int64_t i = 0; i < t.lines; ++i) {
        int n = 0;
        for (; n + 4 <= t.tokens; n += 4) tokens_at_once<4, one_step>(t, line, n, shared, wild);
        if (t.tokens - n == 3) tokens_at_once<3, one_step>(t, line, n, shared, wild);
        if (t.tokens - n == 2) tokens_at_once<2, one_step>(t, line, n, shared, wild);
        if (t.tokens - n == 1) tokens_at_once<1, one_step>(t, line, n, shared, wild);
        line.x += t.line;
        if (line.out) line.out += t.out_line;
        if (line.other) line.other += t.other_line;
        if (line.bytes) line.bytes += t.bytes_line;
    }
    if (t.bytes && wild.found()) *t.wild = true;
}

// One token and two groups that read the same places.
inline void both_groups(const IntegerTask &t) {
    const IntegerTask *const tasks[] = {&t, t.twin};
    Sums<2> sums;
    add_up_twins(t, *t.twin, sums);
    Wild wild;
#pragma GCC unroll 2
    for (int g = 0; g < 2; ++g) {
        const IntegerTask &own = *tasks[g];
        const Line line = {own.x, own.out, nullptr, nullptr, own.step};
        end<1, false>(own, line, 0, Shared(own, false), {{{sums.at[g][0], sums.at[g][1]}}}, wild);
    }
}

void multiply(const IntegerTask &t) {
    if (t.twin) return both_groups(t);
    return t.one_step ? all_lines<true>(t) : all_lines<false>(t);
}
