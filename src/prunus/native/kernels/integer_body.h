// Integer products on 256-bit registers. Included once for each instruction set, which gives `dot(sum, inputs, weights)`:
// the sum of four products of bytes in each 32-bit lane, added to `sum`.

inline __m256i first_lanes(int64_t count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(int(count < 8 ? count : 8)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline __m256 load_up_to(const float *at, int64_t count) {
    return count >= 8 ? _mm256_loadu_ps(at) : _mm256_maskload_ps(at, first_lanes(count));
}

void measure(const float *x, int64_t count, Range &range) {
    __m256 low = _mm256_set1_ps(range.low), high = _mm256_set1_ps(range.high);
    __m256i largest = _mm256_set1_epi32(int(range.largest));
    const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
    const auto see = [&](__m256 v) {
        largest = _mm256_max_epu32(largest, _mm256_and_si256(_mm256_castps_si256(v), magnitude));
        low = _mm256_min_ps(v, low), high = _mm256_max_ps(v, high);  // in this order NaN leaves them alone
    };
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) see(_mm256_loadu_ps(x + i));
    if (i < count) see(load_up_to(x + i, count - i));
    alignas(32) float lows[8], highs[8];
    alignas(32) uint32_t sizes[8];
    _mm256_store_ps(lows, low), _mm256_store_ps(highs, high);
    _mm256_store_si256(reinterpret_cast<__m256i *>(sizes), largest);
    range = {lows[0], highs[0], sizes[0]};
    for (int k = 1; k < 8; ++k) {
        range.low = lows[k] < range.low ? lows[k] : range.low,
        range.high = highs[k] > range.high ? highs[k] : range.high;
        range.largest = sizes[k] > range.largest ? sizes[k] : range.largest;
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
    __m256i whole(__m256 v) const { return _mm256_cvtps_epi32(_mm256_min_ps(_mm256_mul_ps(v, inverse), most)); }
    // Sixteen numbers as 16 bits, four of each register in turn; below the range they may be any negative number.
    __m256i words(__m256 a, __m256 b) const { return _mm256_adds_epi16(_mm256_packs_epi32(whole(a), whole(b)), zero); }
    __m128i bytes(__m256 a, __m256 b) const {
        const __m256i ordered = _mm256_permute4x64_epi64(words(a, b), 0xD8);
        return _mm_packus_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
    }
};

// Zero times each number, added up: NaN as soon as one is not finite.
struct Wild {
    __m256 sum = _mm256_setzero_ps();
    void see(__m256 v) { sum = _mm256_fmadd_ps(v, _mm256_setzero_ps(), sum); }
    bool found() const { return _mm256_movemask_ps(_mm256_cmp_ps(sum, sum, _CMP_UNORD_Q)) != 0; }
};

bool to_bytes(const float *x, int64_t count, const Grid &grid, uint8_t *out) {
    const Rounding rounding(grid);
    Wild wild;
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
        const __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + i + 8);
        wild.see(a), wild.see(b);
        _mm_storeu_si128(reinterpret_cast<__m128i *>(out + i), rounding.bytes(a, b));
    }
    if (i < count) {
        const __m256 a = load_up_to(x + i, count - i),
                     b = count - i > 8 ? load_up_to(x + i + 8, count - i - 8) : _mm256_setzero_ps();
        wild.see(a), wild.see(b);
        alignas(16) uint8_t last[16];
        _mm_store_si128(reinterpret_cast<__m128i *>(last), rounding.bytes(a, b));
        std::memcpy(out + i, last, size_t(count - i));
    }
    if (grid.flat) std::memset(out, 0, size_t(count));
    return !wild.found();
}

// Sixteen rows of sixteen bytes, transposed.
inline void transpose16(__m128i (&r)[16]) {
    __m128i t[16];
#pragma GCC unroll 4
    for (int round = 0; round < 4; ++round) {  // each interleaves rows that lie eight apart
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) {
            t[2 * i] = _mm_unpacklo_epi8(r[i], r[i + 8]);
            t[2 * i + 1] = _mm_unpackhi_epi8(r[i], r[i + 8]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) r[i] = t[i];
    }
}

bool planes_to_bytes(const float *x, int64_t plane, int64_t channels, int64_t count, const Grid &grid, uint8_t *out,
                     int64_t pitch) {
    const Rounding rounding(grid);
    Wild wild;
    for (int64_t i = 0; i < count; i += 16)
        for (int64_t c = 0; c < (channels < pitch ? pitch : channels); c += 16) {
            const int64_t left = count - i;
            __m128i r[16];
#pragma GCC unroll 16
            for (int k = 0; k < 16; ++k) {
                r[k] = _mm_setzero_si128();
                if (c + k >= channels) continue;
                const float *at = x + (c + k) * plane + i;
                const __m256 a = load_up_to(at, left),
                             b = left > 8 ? load_up_to(at + 8, left - 8) : _mm256_setzero_ps();
                wild.see(a), wild.see(b);
                if (!grid.flat) r[k] = rounding.bytes(a, b);
            }
            transpose16(r);
            uint8_t *to = out + i * pitch + c;
            if (pitch % 16 && channels > 16) {  // no room for whole registers
                alignas(16) uint8_t bytes[16];
                for (int k = 0; k < 16 && k < left; ++k) {
                    _mm_store_si128(reinterpret_cast<__m128i *>(bytes), r[k]);
                    std::memcpy(to + k * pitch, bytes, size_t(channels - c < 16 ? channels - c : 16));
                }
                continue;
            }
#pragma GCC unroll 16
            for (int k = 0; k < 16; ++k)
                if (k < left) _mm_storeu_si128(reinterpret_cast<__m128i *>(to + k * pitch), r[k]);
        }
    return !wild.found();
}

inline __m256i load(const uint8_t *at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(at)); }
inline __m256i load_table(const uint8_t *at) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(at)));
}

template <int S>
struct Sums {
    __m256i at[S][2];  // rows 0-3 and 8-11, rows 4-7 and 12-15
};

template <int S>
inline void quads(const uint8_t *unit, const int32_t *place, int32_t count, const uint8_t *x, int64_t pitch,
                  Sums<S> &sums) {
    const __m256i nibble = _mm256_set1_epi8(15);
    for (int32_t u = 0; u < count; ++u, unit += unit_bytes, ++place) {
        if (S == 1) _mm_prefetch(reinterpret_cast<const char *>(unit) + 768, _MM_HINT_T0);
        const __m256i packed = load(unit), first = _mm256_and_si256(packed, nibble);
        const __m256i second = _mm256_and_si256(_mm256_srli_epi16(packed, 4), nibble);
        const uint8_t *at = x + *place;
#pragma GCC unroll 8
        for (int n = 0; n < S; ++n) {
            const __m256i found = load_table(at + n * pitch);
            sums.at[n][0] = dot(sums.at[n][0], _mm256_shuffle_epi8(found, first), load(unit + 32));
            sums.at[n][1] = dot(sums.at[n][1], _mm256_shuffle_epi8(found, second), load(unit + 64));
        }
    }
}

template <int S>
inline void pairs(const uint8_t *unit, const int32_t *place, int32_t count, const uint8_t *x, int64_t pitch,
                  Sums<S> &sums) {
    const __m256i nibble = _mm256_set1_epi8(15);
    for (int32_t u = 0; u < count; ++u, unit += unit_bytes, place += 2) {
        if (S == 1) _mm_prefetch(reinterpret_cast<const char *>(unit) + 768, _MM_HINT_T0);
        const __m256i packed = load(unit), first = _mm256_and_si256(packed, nibble);
        const __m256i second = _mm256_and_si256(_mm256_srli_epi16(packed, 4), nibble);
        const uint8_t *one = x + place[0], *two = x + place[1];
#pragma GCC unroll 8
        for (int n = 0; n < S; ++n) {
            const __m256i a = _mm256_shuffle_epi8(load_table(one + n * pitch), first);
            const __m256i b = _mm256_shuffle_epi8(load_table(two + n * pitch), second);
            sums.at[n][0] = dot(sums.at[n][0], _mm256_unpacklo_epi16(a, b), load(unit + 32));
            sums.at[n][1] = dot(sums.at[n][1], _mm256_unpackhi_epi16(a, b), load(unit + 64));
        }
    }
}

template <int S>
inline void crossed(const uint8_t *unit, const int32_t *place, int32_t count, const uint8_t *x, int64_t pitch,
                    Sums<S> &sums) {
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m256i odd = _mm256_set1_epi16(int16_t(0x8000)),
                  even = _mm256_set1_epi16(0x0080);  // a shuffle gives zero there
    for (int32_t u = 0; u < count; ++u, unit += unit_bytes, place += 4) {
        if (S == 1) _mm_prefetch(reinterpret_cast<const char *>(unit) + 768, _MM_HINT_T0);
        const __m256i packed = load(unit), first = _mm256_and_si256(packed, nibble);
        const __m256i second = _mm256_and_si256(_mm256_srli_epi16(packed, 4), nibble);
        const __m256i i0 = _mm256_or_si256(first, odd), i1 = _mm256_or_si256(first, even);
        const __m256i i2 = _mm256_or_si256(second, odd), i3 = _mm256_or_si256(second, even);
#pragma GCC unroll 8
        for (int n = 0; n < S; ++n) {
            const uint8_t *at = x + n * pitch;
            const __m256i a = _mm256_or_si256(_mm256_shuffle_epi8(load_table(at + place[0]), i0),
                                              _mm256_shuffle_epi8(load_table(at + place[1]), i1));
            const __m256i b = _mm256_or_si256(_mm256_shuffle_epi8(load_table(at + place[2]), i2),
                                              _mm256_shuffle_epi8(load_table(at + place[3]), i3));
            sums.at[n][0] = dot(sums.at[n][0], _mm256_unpacklo_epi16(a, b), load(unit + 32));
            sums.at[n][1] = dot(sums.at[n][1], _mm256_unpackhi_epi16(a, b), load(unit + 64));
        }
    }
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

// The sums of S tokens become numbers, and these bytes. Not inline: the loops above need all registers.
template <int S, bool one_step>
__attribute__((noinline)) void end(const IntegerTask &t, const Line &line, int token, const Shared &shared,
                                   const Sums<S> &sums, Wild &wild) {
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
            wild.see(value.at[0]), wild.see(value.at[1]);
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

// The sums of S tokens, from `start`. Not inline for the same reason.
template <int S>
__attribute__((noinline)) void add_up(const IntegerTask &t, const uint8_t *x, const __m256i *start, Sums<S> &out) {
    Sums<S> sums;
#pragma GCC unroll 8
    for (int n = 0; n < S; ++n) sums.at[n][0] = start[0], sums.at[n][1] = start[1];
    const uint8_t *unit = t.units;
    const int32_t *place = t.place;
    const int64_t pitch = t.pitch;
    quads<S>(unit, place, t.quads, x, pitch, sums);
    unit += t.quads * unit_bytes, place += t.quads;
    pairs<S>(unit, place, t.pairs, x, pitch, sums);
    unit += t.pairs * unit_bytes, place += t.pairs * 2;
    crossed<S>(unit, place, t.crossed, x, pitch, sums);
#pragma GCC unroll 8
    for (int n = 0; n < S; ++n) out.at[n][0] = sums.at[n][0], out.at[n][1] = sums.at[n][1];
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

void multiply(const IntegerTask &t) { return t.one_step ? all_lines<true>(t) : all_lines<false>(t); }
