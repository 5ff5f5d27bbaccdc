// Integer products on 256-bit registers. Included once for each instruction set, which gives `dot(sum, inputs, weights)`:
// the sum of four products of bytes in each 32-bit lane, added to `sum`.

Step quantise(const float *x, int64_t count, uint8_t *out) {
    __m256 low = _mm256_setzero_ps(), high = low;
    __m256i largest = _mm256_setzero_si256();
    const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF), lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const auto some = [&](int64_t i) { return _mm256_cmpgt_epi32(_mm256_set1_epi32(int(count - i)), lane); };
    const auto see = [&](__m256 v) {
        largest = _mm256_max_epu32(largest, _mm256_and_si256(_mm256_castps_si256(v), magnitude));
        low = _mm256_min_ps(v, low), high = _mm256_max_ps(v, high);  // in this order NaN leaves them alone
    };
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) see(_mm256_loadu_ps(x + i));
    if (i < count) see(_mm256_maskload_ps(x + i, some(i)));
    alignas(32) float lows[8], highs[8];
    alignas(32) uint32_t sizes[8];
    _mm256_store_ps(lows, low), _mm256_store_ps(highs, high);
    _mm256_store_si256(reinterpret_cast<__m256i *>(sizes), largest);
    for (int k = 1; k < 8; ++k) {
        lows[0] = lows[k] < lows[0] ? lows[k] : lows[0], highs[0] = highs[k] > highs[0] ? highs[k] : highs[0];
        sizes[0] = sizes[k] > sizes[0] ? sizes[k] : sizes[0];
    }
    const Grid grid = grid_for(lows[0], highs[0], sizes[0]);
    const int64_t padded = (count + table - 1) / table * table;
    if (grid.flat) {
        std::memset(out, 0, size_t(padded));
        return grid.step;
    }
    const __m256 inverse = _mm256_set1_ps(grid.inverse);
    const __m256i zero = _mm256_set1_epi32(grid.step.zero);
    const __m128i most = _mm_set1_epi8(char(top));
    const auto eight = [&](int64_t at) {
        if (at >= count) return _mm256_setzero_si256();
        const __m256 v = at + 8 <= count ? _mm256_loadu_ps(x + at) : _mm256_maskload_ps(x + at, some(at));
        const __m256i q = _mm256_add_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(v, inverse)), zero);
        return at + 8 <= count ? q : _mm256_and_si256(q, some(at));
    };
    for (i = 0; i < padded; i += 16) {
        const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(eight(i), eight(i + 8)), 0xD8);
        const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
        _mm_storeu_si128(reinterpret_cast<__m128i *>(out + i), _mm_min_epu8(bytes, most));
    }
    return grid.step;
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

inline __m256 finish(__m256i sum, const IntegerTask &t, const Step &step, int64_t row) {
    const __m256i rows = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(t.sum + row));
    const __m256i exact = _mm256_sub_epi32(sum, _mm256_mullo_epi32(rows, _mm256_set1_epi32(step.zero)));
    const __m256 scale = _mm256_mul_ps(_mm256_set1_ps(step.step), _mm256_loadu_ps(t.scale + row));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(exact), scale);
}

inline void end(const IntegerTask &t, int token, const __m256i (&sum)[2]) {
    const __m256i rows[2] = {_mm256_permute2x128_si256(sum[0], sum[1], 0x20),
                             _mm256_permute2x128_si256(sum[0], sum[1], 0x31)};
    float *out = t.out + token * t.ldo;
    for (int half = 0; half < 2; ++half) {
        const int64_t row = 8 * half, left = t.rows - row;
        if (left <= 0) return;
        const __m256i some =
            _mm256_cmpgt_epi32(_mm256_set1_epi32(int(left)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
        __m256 value = finish(rows[half], t, t.step[token], row);
        if (t.bias)
            value = _mm256_add_ps(value,
                                  left >= 8 ? _mm256_loadu_ps(t.bias + row) : _mm256_maskload_ps(t.bias + row, some));
        if (t.relu) value = _mm256_max_ps(_mm256_setzero_ps(), value);  // in this order it keeps NaN
        if (left >= 8)
            _mm256_storeu_ps(out + row, value);
        else
            _mm256_maskstore_ps(out + row, some, value);
    }
}

template <int S>
inline void tokens_at_once(const IntegerTask &t, int token) {
    Sums<S> sums;
    for (auto &pair : sums.at) pair[0] = pair[1] = _mm256_setzero_si256();
    const uint8_t *x = t.x + token * t.pitch, *unit = t.units;
    const int32_t *place = t.place;
    quads<S>(unit, place, t.quads, x, t.pitch, sums);
    unit += t.quads * unit_bytes, place += t.quads;
    pairs<S>(unit, place, t.pairs, x, t.pitch, sums);
    unit += t.pairs * unit_bytes, place += t.pairs * 2;
    crossed<S>(unit, place, t.crossed, x, t.pitch, sums);
#pragma GCC unroll 8
    for (int n = 0; n < S; ++n) end(t, token + n, sums.at[n]);
}

void multiply(const IntegerTask &t) {
    int n = 0;
    for (; n + 4 <= t.tokens; n += 4) tokens_at_once<4>(t, n);
    if (t.tokens - n == 3) return tokens_at_once<3>(t, n);
    if (t.tokens - n == 2) return tokens_at_once<2>(t, n);
    if (t.tokens - n == 1) tokens_at_once<1>(t, n);
}
