// Convolutions over planes of bytes on 256-bit registers; part of integer_body.h.

void choose(const uint8_t *from, const uint8_t *inside, int64_t count, uint8_t zero, uint8_t *out) {
    const __m256i other = _mm256_set1_epi8(char(zero));
    const auto some = [&](int64_t i) {
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(out + i),
                            _mm256_blendv_epi8(other, load(from + i), load(inside + i)));
    };
    for (int64_t i = 0; i + 32 <= count; i += 32) some(i);
    if (count >= 32 && count % 32) some(count - 32);  // the last ones again, not one by one
    for (int64_t i = 0; i < count && count < 32; ++i) out[i] = inside[i] ? from[i] : zero;
}

void choose_second(const uint8_t *from, const uint8_t *inside, int64_t count, uint8_t zero, uint8_t *out) {
    const __m128i other = _mm_set1_epi8(char(zero)), low = _mm_set1_epi16(255);
    const auto half = [](const uint8_t *at) { return _mm_loadu_si128(reinterpret_cast<const __m128i *>(at)); };
    const auto some = [&](int64_t i) {
        const __m128i a = _mm_and_si128(half(from + 2 * i), low), b = _mm_and_si128(half(from + 2 * i + 16), low);
        return _mm_blendv_epi8(other, _mm_packus_epi16(a, b), half(inside + i));
    };
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) _mm_storeu_si128(reinterpret_cast<__m128i *>(out + i), some(i));
    if (i + 8 <= count) {
        const __m128i a = _mm_and_si128(half(from + 2 * i), low);
        const __m128i mask = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(inside + i));
        _mm_storel_epi64(reinterpret_cast<__m128i *>(out + i), _mm_blendv_epi8(other, _mm_packus_epi16(a, a), mask));
        i += 8;
    }
    for (; i < count; ++i) out[i] = inside[i] ? from[2 * i] : zero;
}

// The sums of 32 pixels: 0-3 and 16-19, 4-7 and 20-23, 8-11 and 24-27, 12-15 and 28-31.
struct PixelSums {
    __m256i at[4];
    // Sums of 16 bits, of the pixels 0-7 and 16-23 and of the others, widened and added.
    void add(__m256i low, __m256i high, __m256i more_low, __m256i more_high) {
        const __m256i ones = _mm256_set1_epi16(1);
        const auto wide = [&](__m256i both) { return _mm256_madd_epi16(both, ones); };
        at[0] = _mm256_add_epi32(at[0], wide(_mm256_unpacklo_epi16(low, more_low)));
        at[1] = _mm256_add_epi32(at[1], wide(_mm256_unpackhi_epi16(low, more_low)));
        at[2] = _mm256_add_epi32(at[2], wide(_mm256_unpacklo_epi16(high, more_high)));
        at[3] = _mm256_add_epi32(at[3], wide(_mm256_unpackhi_epi16(high, more_high)));
    }
};

// Weights two by two: inputs are multiplied into 16 bits, where four weights fit, and widened.
struct InPairs {
    // Four weights of an octet: their sums of 16 bits.
    static void four(const Octet &o, int first, const uint8_t *x, __m256i &low, __m256i &high) {
#pragma GCC unroll 2
        for (int i = first; i < first + 4; i += 2) {
            int32_t pair;
            std::memcpy(&pair, o.weight + 2 * i, 4);
            const __m256i weight = _mm256_set1_epi32(pair), a = load(x + o.at[i]), b = load(x + o.at[i + 1]);
            const __m256i one = _mm256_maddubs_epi16(_mm256_unpacklo_epi8(a, b), weight);
            const __m256i two = _mm256_maddubs_epi16(_mm256_unpackhi_epi8(a, b), weight);
            low = i == first ? one : _mm256_add_epi16(low, one), high = i == first ? two : _mm256_add_epi16(high, two);
        }
    }
    static const Octet *add(const Octet *o, int32_t quads, const uint8_t *x, PixelSums &sums) {
        __m256i low, high, more_low, more_high;
        for (; quads >= 2; quads -= 2, ++o) {
            four(*o, 0, x, low, high), four(*o, 4, x, more_low, more_high);
            sums.add(low, high, more_low, more_high);
        }
        if (quads == 0) return o;
        four(*o, 0, x, low, high);
        sums.add(low, high, _mm256_setzero_si256(), _mm256_setzero_si256());
        return o + 1;
    }
};

// Weights four by four, each with one instruction.
struct InFours {
    static void four(const Octet &o, int half, const uint8_t *x, PixelSums &sums) {
        const uint32_t *at = o.at + 4 * half;
        int32_t weights;
        std::memcpy(&weights, o.weight + 4 * half, 4);
        const __m256i own = _mm256_set1_epi32(weights);
        const __m256i a = load(x + at[0]), b = load(x + at[1]), c = load(x + at[2]), d = load(x + at[3]);
        const __m256i low = _mm256_unpacklo_epi8(a, b), high = _mm256_unpackhi_epi8(a, b);
        const __m256i more_low = _mm256_unpacklo_epi8(c, d), more_high = _mm256_unpackhi_epi8(c, d);
        sums.at[0] = dot(sums.at[0], _mm256_unpacklo_epi16(low, more_low), own);
        sums.at[1] = dot(sums.at[1], _mm256_unpackhi_epi16(low, more_low), own);
        sums.at[2] = dot(sums.at[2], _mm256_unpacklo_epi16(high, more_high), own);
        sums.at[3] = dot(sums.at[3], _mm256_unpackhi_epi16(high, more_high), own);
    }
    static const Octet *add(const Octet *o, int32_t quads, const uint8_t *x, PixelSums &sums) {
        PixelSums more = {};
        for (; quads >= 2; quads -= 2, ++o) four(*o, 0, x, sums), four(*o, 1, x, more);
        if (quads) four(*o++, 0, x, sums);
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) sums.at[k] = _mm256_add_epi32(sums.at[k], more.at[k]);
        return o;
    }
};

// The sums of one row become numbers, and these bytes. `all`: of 32 pixels. Numbers are put in the order of the pixels
// only where they are needed so.
template <bool adds, bool all>
inline void end_row(const PlaneTask &t, int64_t row, const PixelSums &sums, const Rounding &rounding, Wild &wild) {
    const __m256 scale = _mm256_set1_ps(t.step.step * t.scale[row]), bias = _mm256_set1_ps(t.bias ? t.bias[row] : 0.0f);
    const int64_t at = row * t.plane;
    const auto left = [&](int k) { return all ? 8 : int64_t(t.pixels) - 8 * k; };
    const auto in_order = [](__m256(&v)[4]) {
        const __m256 a = v[0], b = v[1], c = v[2], d = v[3];
        v[0] = _mm256_permute2f128_ps(a, b, 0x20), v[2] = _mm256_permute2f128_ps(a, b, 0x31);
        v[1] = _mm256_permute2f128_ps(c, d, 0x20), v[3] = _mm256_permute2f128_ps(c, d, 0x31);
    };
    __m256 v[4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) v[k] = _mm256_add_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(sums.at[k]), scale), bias);
    if (adds || !all) in_order(v);
    if (adds) {
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k)
            if (left(k) > 0) v[k] = _mm256_add_ps(v[k], load_up_to(t.other + at + 8 * k, left(k)));
    }
    if (t.relu) {
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k)  // in this order it keeps NaN
            v[k] = _mm256_min_ps(_mm256_set1_ps(t.cap), _mm256_max_ps(_mm256_setzero_ps(), v[k]));
    }
    if (t.bytes) {
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k)
            wild.see(k, all ? v[k] : _mm256_and_ps(v[k], _mm256_castsi256_ps(first_lanes(left(k)))));
        const __m256i bytes = adds || !all ? rounding.in_order(v) : rounding.in_turn(v);
        if (all)
            _mm256_storeu_si256(reinterpret_cast<__m256i *>(t.bytes + at), bytes);
        else {
            alignas(32) uint8_t some[32];
            _mm256_store_si256(reinterpret_cast<__m256i *>(some), bytes);
            std::memcpy(t.bytes + at, some, size_t(t.pixels));
        }
    }
    if (!t.out) return;
    if (!adds && all) in_order(v);
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k)
        if (all)
            _mm256_storeu_ps(t.out + at + 8 * k, v[k]);
        else if (left(k) > 0)
            _mm256_maskstore_ps(t.out + at + 8 * k, first_lanes(left(k)), v[k]);
}

template <class Row, bool adds, bool all>
inline void all_rows(const PlaneTask t) {  // its own copy, which no byte that is written can change
    constexpr int64_t ahead = 4;
    const Rounding rounding(t.grid ? *t.grid : Grid{});
    Wild wild;
    const Octet *octet = t.octets;
    for (int64_t row = 0; row < t.rows; ++row) {
        int32_t *kept = t.sums + row * pixels_at_once;
        PixelSums sums;
        const __m256i start = _mm256_set1_epi32(-t.step.zero * t.sum[row]);
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k)
            sums.at[k] = t.fresh ? start : _mm256_loadu_si256(reinterpret_cast<const __m256i *>(kept + 8 * k));
        if (t.last && t.out &&
            row + ahead < t.rows) {  // another plane is another page, which nothing fetches by itself
            const float *soon = t.out + (row + ahead) * t.plane;
            __builtin_prefetch(soon, 1), __builtin_prefetch(soon + 16, 1);
        }
        octet = Row::add(octet, t.quads[row], t.x, sums);
        if (t.last) {
            end_row<adds, all>(t, row, sums, rounding, wild);
            continue;
        }
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) _mm256_storeu_si256(reinterpret_cast<__m256i *>(kept + 8 * k), sums.at[k]);
    }
    if (t.last && t.bytes && wild.found()) *t.wild = true;
}

template <class Row>
inline void planes_of(const PlaneTask &t) {
    if (t.pixels == pixels_at_once) return t.other ? all_rows<Row, true, true>(t) : all_rows<Row, false, true>(t);
    return t.other ? all_rows<Row, true, false>(t) : all_rows<Row, false, false>(t);
}

void planes(const PlaneTask &t) { planes_of<InPairs>(t); }
