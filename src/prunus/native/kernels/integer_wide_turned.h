// Depthwise convolutions on 512-bit registers: images with all channels of a pixel side by side.

// What all tokens of a block of 64 channels share, in the order in which sums of bytes come (`wide_order`).
struct OwnShared {
    __m512 scale[4], bias[4];
    __m512 start[4];  // as bits
    OwnShared(const OwnTask &t, int64_t first) {
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) {
            const int64_t at = first + 16 * k;
            scale[k] = _mm512_mul_ps(_mm512_set1_ps(t.step.step), _mm512_loadu_ps(t.scale + at));
            bias[k] = t.bias ? _mm512_loadu_ps(t.bias + at) : _mm512_setzero_ps();
            const __m512i sum = _mm512_loadu_si512(t.sum + at);
            start[k] = _mm512_castsi512_ps(_mm512_mullo_epi32(sum, _mm512_set1_epi32(-t.step.zero)));
        }
        wide_order(scale), wide_order(bias), wide_order(start);
    }
};

inline void own_token(const OwnTask &t, const uint8_t *x, const int8_t *weight, const OwnShared &shared,
                      __m512 (&v)[4]) {
    __m512i sum[4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) sum[k] = _mm512_castps_si512(shared.start[k]);
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
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k)
        v[k] = _mm512_add_ps(_mm512_mul_ps(wide_floats(sum[k]), shared.scale[k]), shared.bias[k]);
}

// The bytes of one block of channels, without what is added or kept in floats.
void own_bytes(const OwnTask &t, const TokenEnd &e) {
    const OwnShared shared(t, 0);
    const WideRounding rounding(*e.grid);
    const __m512 cap = _mm512_set1_ps(e.cap), none = _mm512_setzero_ps();
    const __mmask64 some = e.rows >= own_block ? ~__mmask64(0) : (__mmask64(1) << e.rows) - 1;
    WideWild wild;
    for (int64_t i = 0; i < t.lines; ++i)
        for (int64_t n = 0; n < t.tokens; ++n) {
            __m512 v[4];
            own_token(t, t.x + i * t.line + n * t.pitch, t.weight, shared, v);
#pragma GCC unroll 4
            for (int k = 0; k < 4; ++k) {
                if (e.relu) v[k] = _mm512_min_ps(cap, _mm512_max_ps(none, v[k]));  // in this order it keeps NaN
                wild.see(k, v[k]);
            }
            uint8_t *to = e.bytes + i * e.byte_line + n * e.byte_token;
            if (e.rows >= own_block)
                _mm512_storeu_si512(to, rounding.in_turn(v));
            else
                store_some(to, some, rounding.in_turn(v));
        }
    if (wild.found()) *e.wild = true;
}

void own_wide(const OwnTask &t) {
    if (t.end && t.end->bytes && !t.end->out && !t.end->other) return own_bytes(t, *t.end);
    for (int64_t block = 0; block * own_block < t.channels; ++block) {
        const OwnShared shared(t, block * own_block);
        const int8_t *weight = t.weight + block * t.fours * 4 * own_block;
        float *out = t.out + block * t.out_block;
        for (int64_t i = 0; i < t.lines; ++i)
            for (int64_t n = 0; n < t.tokens; ++n, out += own_block) {
                __m512 v[4];
                own_token(t, t.x + i * t.line + n * t.pitch + block * own_block, weight, shared, v);
                wide_order(v);
#pragma GCC unroll 4
                for (int k = 0; k < 4; ++k) _mm512_storeu_ps(out + 16 * k, v[k]);
            }
    }
    if (t.end) end_tokens_wide(*t.end);
}
