// Images with all channels of a pixel side by side, on 512-bit registers; included after integer_wide_planes.h.

// Sixteen numbers from 0 to 255 as bytes.
template <bool all>
inline void store_bytes(uint8_t *to, __mmask16 some, __m512i numbers) {
    const __m128i bytes = _mm512_cvtepi32_epi8(numbers);
    if (all)
        _mm_storeu_si128(reinterpret_cast<__m128i *>(to), bytes);
    else
        _mm_mask_storeu_epi8(to, some, bytes);
}

void own_wide(const OwnTask &t) {
    for (int64_t block = 0; block * own_block < t.channels; ++block) {
        const int64_t first = block * own_block;
        const int8_t *const weights = t.weight + block * t.fours * 4 * own_block;
        __m512 scale[4], bias[4];
        __m512i start[4];
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) {
            const int64_t at = first + 16 * k;
            scale[k] = _mm512_mul_ps(_mm512_set1_ps(t.step.step), _mm512_loadu_ps(t.scale + at));
            bias[k] = t.bias ? _mm512_loadu_ps(t.bias + at) : _mm512_setzero_ps();
            start[k] = _mm512_mullo_epi32(_mm512_loadu_si512(t.sum + at), _mm512_set1_epi32(-t.step.zero));
        }
        float *out = t.out + block * t.out_block;
        for (int64_t i = 0; i < t.lines; ++i)
            for (int64_t n = 0; n < t.tokens; ++n, out += own_block) {
                const uint8_t *x = t.x + i * t.line + n * t.pitch + first;
                const int8_t *weight = weights;
                __m512i sum[4];
#pragma GCC unroll 4
                for (int k = 0; k < 4; ++k) sum[k] = _mm512_setzero_si512();
                for (int64_t f = 0; f < t.fours; ++f, weight += 4 * own_block) {
                    const int64_t *at = t.at + 4 * f;
                    const __m512i a = load_wide(x + at[0]), b = load_wide(x + at[1]);
                    const __m512i c = load_wide(x + at[2]), d = load_wide(x + at[3]);
                    const __m512i low = _mm512_unpacklo_epi8(a, b), high = _mm512_unpackhi_epi8(a, b);
                    const __m512i more_low = _mm512_unpacklo_epi8(c, d), more_high = _mm512_unpackhi_epi8(c, d);
                    const auto own = [&](int k) { return _mm512_loadu_si512(weight + 64 * k); };
                    sum[0] = _mm512_dpbusd_epi32(sum[0], _mm512_unpacklo_epi16(low, more_low), own(0));
                    sum[1] = _mm512_dpbusd_epi32(sum[1], _mm512_unpackhi_epi16(low, more_low), own(1));
                    sum[2] = _mm512_dpbusd_epi32(sum[2], _mm512_unpacklo_epi16(high, more_high), own(2));
                    sum[3] = _mm512_dpbusd_epi32(sum[3], _mm512_unpackhi_epi16(high, more_high), own(3));
                }
                __m512 v[4];
#pragma GCC unroll 4
                for (int k = 0; k < 4; ++k) v[k] = _mm512_castsi512_ps(sum[k]);
                wide_order(v);
#pragma GCC unroll 4
                for (int k = 0; k < 4; ++k) {
                    const __m512i whole = _mm512_add_epi32(_mm512_castps_si512(v[k]), start[k]);
                    _mm512_storeu_ps(out + 16 * k,
                                     _mm512_add_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(whole), scale[k]), bias[k]));
                }
            }
    }
}

template <bool all, bool adds, bool floats>
inline void end_wide_tokens(const TokenEnd t) {
    const Grid grid = t.grid ? *t.grid : Grid{};
    const __m512 inverse = _mm512_set1_ps(grid.inverse), most = _mm512_set1_ps(float(top - grid.step.zero));
    const __m512 cap = _mm512_set1_ps(t.relu ? t.cap : std::numeric_limits<float>::infinity());
    const __m512 least = _mm512_set1_ps(t.relu ? 0.0f : -std::numeric_limits<float>::infinity());
    const __m512i zero = _mm512_set1_epi32(grid.step.zero), none = _mm512_setzero_si512();
    const bool bytes = t.bytes != nullptr;
    __m512 wild = _mm512_setzero_ps();
    for (int64_t r = 0; r < t.rows; r += 16) {
        const __mmask16 some = all ? __mmask16(0xFFFF) : first_of(t.rows - r);
        const float *from = t.from + r;
        for (int64_t i = 0; i < t.lines; ++i) {
            const float *other = adds ? t.other + i * t.out_line + r : nullptr;
            float *out = floats ? t.out + i * t.out_line + r : nullptr;
            uint8_t *to = t.bytes + i * t.byte_line + r;
            for (int64_t n = 0; n < t.tokens; ++n, from += t.from_token) {
                __m512 v = _mm512_loadu_ps(from);
                if (!all) v = _mm512_maskz_mov_ps(some, v);
                if (adds) {
                    v = _mm512_add_ps(v, all ? _mm512_loadu_ps(other) : _mm512_maskz_loadu_ps(some, other));
                    other += t.out_token;
                }
                v = _mm512_min_ps(cap, _mm512_max_ps(least, v));  // in this order it keeps NaN
                if (floats) {
                    if (all)
                        _mm512_storeu_ps(out, v);
                    else
                        _mm512_mask_storeu_ps(out, some, v);
                    out += t.out_token;
                }
                if (!bytes) continue;
                wild = _mm512_fmadd_ps(v, _mm512_setzero_ps(), wild);
                const __m512i whole = _mm512_cvtps_epi32(_mm512_min_ps(_mm512_mul_ps(v, inverse), most));
                store_bytes<all>(to, some, _mm512_max_epi32(_mm512_add_epi32(whole, zero), none));
                to += t.byte_token;
            }
        }
    }
    if (bytes && _mm512_cmp_ps_mask(wild, wild, _CMP_UNORD_Q)) *t.wild = true;
}

template <bool all>
inline void end_wide_tokens(const TokenEnd &t) {
    if (t.other) return t.out ? end_wide_tokens<all, true, true>(t) : end_wide_tokens<all, true, false>(t);
    return t.out ? end_wide_tokens<all, false, true>(t) : end_wide_tokens<all, false, false>(t);
}

void end_tokens_wide(const TokenEnd &t) { t.rows % 16 ? end_wide_tokens<false>(t) : end_wide_tokens<true>(t); }
