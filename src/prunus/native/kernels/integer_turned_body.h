// Images with all channels of a pixel side by side, on 256-bit registers; part of integer_body.h.

// Sixteen channels of sixteen pixels at a time.
inline void turn_square(const uint8_t *from, int64_t plane, uint8_t *to, int64_t pitch) {
    __m128i row[16], next[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) row[i] = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from + i * plane));
#pragma GCC unroll 4
    for (int step = 0; step < 4; ++step) {  // each step interleaves the first half of the rows with the second
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) {
            next[2 * i] = _mm_unpacklo_epi8(row[i], row[i + 8]);
            next[2 * i + 1] = _mm_unpackhi_epi8(row[i], row[i + 8]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) row[i] = next[i];
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) _mm_storeu_si128(reinterpret_cast<__m128i *>(to + i * pitch), row[i]);
}

void turn(const uint8_t *from, int64_t plane, int64_t channels, int64_t pixels, uint8_t *to, int64_t pitch) {
    const int64_t whole_channels = channels / 16 * 16, whole_pixels = pixels / 16 * 16;
    for (int64_t k = 0; k < whole_channels; k += 16)
        for (int64_t i = 0; i < whole_pixels; i += 16)
            turn_square(from + k * plane + i, plane, to + i * pitch + k, pitch);
    for (int64_t i = 0; i < pixels; ++i)
        for (int64_t k = i < whole_pixels ? whole_channels : 0; k < channels; ++k)
            to[i * pitch + k] = from[k * plane + i];
}

// Eight numbers of each register in the order of the channels, from four in turn.
inline void ordered(const __m256i (&at)[4], __m256i (&out)[4]) {
    out[0] = _mm256_permute2x128_si256(at[0], at[1], 0x20), out[1] = _mm256_permute2x128_si256(at[2], at[3], 0x20);
    out[2] = _mm256_permute2x128_si256(at[0], at[1], 0x31), out[3] = _mm256_permute2x128_si256(at[2], at[3], 0x31);
}

// 32 channels of one token.
inline void own_half(const OwnTask &t, const uint8_t *x, const int8_t *weight, int64_t first, float *out) {
    PixelSums sums = {};
    for (int64_t f = 0; f < t.fours; ++f, weight += 4 * own_block) {
        const int64_t *at = t.at + 4 * f;
        const __m256i a = load(x + at[0]), b = load(x + at[1]), c = load(x + at[2]), d = load(x + at[3]);
        const __m256i low = _mm256_unpacklo_epi8(a, b), high = _mm256_unpackhi_epi8(a, b);
        const __m256i more_low = _mm256_unpacklo_epi8(c, d), more_high = _mm256_unpackhi_epi8(c, d);
        const auto own = [&](int k) { return load(reinterpret_cast<const uint8_t *>(weight) + 64 * k); };
        sums.at[0] = dot(sums.at[0], _mm256_unpacklo_epi16(low, more_low), own(0));
        sums.at[1] = dot(sums.at[1], _mm256_unpackhi_epi16(low, more_low), own(1));
        sums.at[2] = dot(sums.at[2], _mm256_unpacklo_epi16(high, more_high), own(2));
        sums.at[3] = dot(sums.at[3], _mm256_unpackhi_epi16(high, more_high), own(3));
    }
    __m256i v[4];
    ordered(sums.at, v);
    const __m256i zero = _mm256_set1_epi32(-t.step.zero);
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
        const int64_t at = first + 8 * k;
        const __m256i sum = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(t.sum + at));
        const __m256 scale = _mm256_mul_ps(_mm256_set1_ps(t.step.step), _mm256_loadu_ps(t.scale + at));
        const __m256 bias = t.bias ? _mm256_loadu_ps(t.bias + at) : _mm256_setzero_ps();
        const __m256i whole = _mm256_add_epi32(v[k], _mm256_mullo_epi32(sum, zero));
        _mm256_storeu_ps(out + 8 * k, _mm256_add_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(whole), scale), bias));
    }
}

void own(const OwnTask &t) {
    for (int64_t k = 0; k < t.channels; k += 32) {
        const int8_t *weight = t.weight + k / own_block * t.fours * 4 * own_block + k % own_block;
        for (int64_t i = 0; i < t.lines; ++i)
            for (int64_t n = 0; n < t.tokens; ++n)
                own_half(t, t.x + i * t.line + n * t.pitch + k, weight, k,
                         t.out + k / own_block * t.out_block + (i * t.tokens + n) * own_block + k % own_block);
    }
}

// Sixteen bytes of sixteen numbers.
inline __m128i sixteen_bytes(const Rounding &rounding, __m256 a, __m256 b) {
    const __m256i words = rounding.words(a, b), bytes = _mm256_packus_epi16(words, words);
    return _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
}

void end_tokens(const TokenEnd &t) {
    const Rounding rounding(t.grid ? *t.grid : Grid{});
    Wild wild;
    for (int64_t i = 0; i < t.lines; ++i)
        for (int64_t n = 0; n < t.tokens; ++n)
            for (int64_t r = 0; r < t.rows; r += 16) {
                const float *from = t.from + (i * t.tokens + n) * t.from_token + r;
                const int64_t at = i * t.out_line + n * t.out_token + r, left = t.rows - r;
                __m256 v[2] = {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
#pragma GCC unroll 2
                for (int k = 0; k < 2; ++k) {
                    const int64_t some = left - 8 * k;
                    if (some < 8) v[k] = _mm256_and_ps(v[k], _mm256_castsi256_ps(first_lanes(some)));
                    if (t.other && some > 0) v[k] = _mm256_add_ps(v[k], load_up_to(t.other + at + 8 * k, some));
                    if (t.relu)  // in this order it keeps NaN
                        v[k] = _mm256_min_ps(_mm256_set1_ps(t.cap), _mm256_max_ps(_mm256_setzero_ps(), v[k]));
                    if (t.bytes) wild.see(k, v[k]);
                    if (t.out && some > 0) {
                        if (some >= 8)
                            _mm256_storeu_ps(t.out + at + 8 * k, v[k]);
                        else
                            _mm256_maskstore_ps(t.out + at + 8 * k, first_lanes(some), v[k]);
                    }
                }
                if (!t.bytes) continue;
                const __m128i bytes = sixteen_bytes(rounding, v[0], v[1]);
                uint8_t *to = t.bytes + i * t.byte_line + n * t.byte_token + r;
                if (left >= 16)
                    _mm_storeu_si128(reinterpret_cast<__m128i *>(to), bytes);
                else {
                    alignas(16) uint8_t some[16];
                    _mm_store_si128(reinterpret_cast<__m128i *>(some), bytes);
                    std::memcpy(to, some, size_t(left));
                }
            }
    if (t.bytes && wild.found()) *t.wild = true;
}
