// Convolutions over planes of bytes on 512-bit registers, four weights by one instruction. Included after
// integer_body.h, whose 256 bits serve where half a register is enough.

constexpr int64_t wide_pixels = 64;

// The sums of 64 pixels: 0-3, 16-19, 32-35 and 48-51, then 4-7, 20-23 and so on.
struct WidePixels {
    __m512i at[4];
};

inline void wide_four(const Octet &o, int half, const uint8_t *x, WidePixels &sums) {
    const uint32_t *at = o.at + 4 * half;
    int32_t weights;
    std::memcpy(&weights, o.weight + 4 * half, 4);
    const __m512i own = _mm512_set1_epi32(weights);
    const __m512i a = load_wide(x + at[0]), b = load_wide(x + at[1]), c = load_wide(x + at[2]),
                  d = load_wide(x + at[3]);
    const __m512i low = _mm512_unpacklo_epi8(a, b), high = _mm512_unpackhi_epi8(a, b);
    const __m512i more_low = _mm512_unpacklo_epi8(c, d), more_high = _mm512_unpackhi_epi8(c, d);
    sums.at[0] = _mm512_dpbusd_epi32(sums.at[0], _mm512_unpacklo_epi16(low, more_low), own);
    sums.at[1] = _mm512_dpbusd_epi32(sums.at[1], _mm512_unpackhi_epi16(low, more_low), own);
    sums.at[2] = _mm512_dpbusd_epi32(sums.at[2], _mm512_unpacklo_epi16(high, more_high), own);
    sums.at[3] = _mm512_dpbusd_epi32(sums.at[3], _mm512_unpackhi_epi16(high, more_high), own);
}

inline const Octet *add_wide_row(const Octet *o, int32_t quads, const uint8_t *x, WidePixels &sums) {
    WidePixels more;
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) more.at[k] = _mm512_setzero_si512();
    for (; quads >= 2; quads -= 2, ++o) wide_four(*o, 0, x, sums), wide_four(*o, 1, x, more);
    if (quads) wide_four(*o++, 0, x, sums);
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) sums.at[k] = _mm512_add_epi32(sums.at[k], more.at[k]);
    return o;
}

// The parts of four registers in turn, in the order of the pixels.
inline void wide_order(__m512 (&v)[4]) {
    const __m512 a = quarters<0x44>(v[0], v[1]), b = quarters<0x44>(v[2], v[3]);
    const __m512 c = quarters<0xEE>(v[0], v[1]), d = quarters<0xEE>(v[2], v[3]);
    v[0] = quarters<0x88>(a, b), v[1] = quarters<0xDD>(a, b);
    v[2] = quarters<0x88>(c, d), v[3] = quarters<0xDD>(c, d);
}

// `end_row` of 64 pixels, or of so many.
template <bool adds, bool all>
inline void end_wide_row(const PlaneTask &t, int64_t row, const WidePixels &sums, const WideRounding &rounding,
                         WideWild &wild) {
    const __m512 scale = _mm512_set1_ps(t.step.step * t.scale[row]), bias = _mm512_set1_ps(t.bias ? t.bias[row] : 0.0f);
    const int64_t at = row * t.plane;
    const auto left = [&](int k) { return first_of(int64_t(t.pixels) - 16 * k); };
    __m512 v[4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) v[k] = _mm512_add_ps(_mm512_mul_ps(wide_floats(sums.at[k]), scale), bias);
    if (adds || !all) wide_order(v);
    if (adds) {
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) {
            const float *other = t.other + at + 16 * k;
            v[k] = _mm512_add_ps(v[k], all ? _mm512_loadu_ps(other) : load_some(left(k), other));
        }
    }
    if (t.relu) {
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k)  // in this order it keeps NaN
            v[k] = _mm512_min_ps(_mm512_set1_ps(t.cap), _mm512_max_ps(_mm512_setzero_ps(), v[k]));
    }
    if (t.bytes) {
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) wild.see(k, all ? v[k] : _mm512_maskz_mov_ps(left(k), v[k]));
        const __m512i bytes = adds || !all ? rounding.in_order(v) : rounding.in_turn(v);
        if (all)
            _mm512_storeu_si512(t.bytes + at, bytes);
        else {
            alignas(64) uint8_t some[wide_pixels];
            _mm512_store_si512(some, bytes);
            std::memcpy(t.bytes + at, some, size_t(t.pixels));
        }
    }
    if (!t.out) return;
    if (!adds && all) wide_order(v);
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k)
        if (all)
            _mm512_storeu_ps(t.out + at + 16 * k, v[k]);
        else
            store_some(t.out + at + 16 * k, left(k), v[k]);
}

template <bool adds, bool all>
inline void all_wide_rows(const PlaneTask t) {  // its own copy, which no byte that is written can change
    constexpr int64_t ahead = 4;
    const WideRounding rounding(t.grid ? *t.grid : Grid{});
    WideWild wild;
    const Octet *octet = t.octets;
    for (int64_t row = 0; row < t.rows; ++row) {
        int32_t *kept = t.sums + row * wide_pixels;
        WidePixels sums;
        const __m512i start = _mm512_set1_epi32(-t.step.zero * t.sum[row]);
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) sums.at[k] = t.fresh ? start : _mm512_loadu_si512(kept + 16 * k);
        if (t.last && t.out && row + ahead < t.rows) {
            const char *soon = reinterpret_cast<const char *>(t.out + (row + ahead) * t.plane);
#pragma GCC unroll 4
            for (int k = 0; k < 4; ++k) __builtin_prefetch(soon + 64 * k, 1);
        }
        octet = add_wide_row(octet, t.quads[row], t.x, sums);
        if (t.last) {
            end_wide_row<adds, all>(t, row, sums, rounding, wild);
            continue;
        }
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) _mm512_storeu_si512(kept + 16 * k, sums.at[k]);
    }
    if (t.last && t.bytes && wild.found()) *t.wild = true;
}

void planes_wide(const PlaneTask &t) {
    if (t.pixels <= pixels_at_once) return planes_of<InFours>(t);
    if (t.pixels == wide_pixels) return t.other ? all_wide_rows<true, true>(t) : all_wide_rows<false, true>(t);
    return t.other ? all_wide_rows<true, false>(t) : all_wide_rows<false, false>(t);
}
