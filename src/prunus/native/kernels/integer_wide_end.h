// What becomes of the numbers of tokens, on 512-bit registers: sixteen rows of a token are one register. Included before
// integer_wide.h.

inline __mmask16 first_of(int64_t count) {
    return __mmask16(count >= 16 ? 0xFFFF : count <= 0 ? 0 : (1u << count) - 1);
}

// Quarters of two registers: two of the first, then two of the second.
template <int order>
inline __m512 quarters(__m512 a, __m512 b) {
    return _mm512_castsi512_ps(_mm512_shuffle_i32x4(_mm512_castps_si512(a), _mm512_castps_si512(b), order));
}

// As `Rounding` does it.
struct WideRounding {
    const __m512 inverse, most;
    const __m512i zero;
    explicit WideRounding(const Grid &g)
        : inverse(_mm512_set1_ps(g.inverse)),
          most(_mm512_set1_ps(float(top - g.step.zero))),
          zero(_mm512_set1_epi16(int16_t(g.step.zero))) {}
    __m512i whole(__m512 v) const { return wide_whole(_mm512_min_ps(_mm512_mul_ps(v, inverse), most)); }
    __m512i words(__m512 a, __m512 b) const { return _mm512_adds_epi16(_mm512_packs_epi32(whole(a), whole(b)), zero); }
    // Of each quarter of the registers four bytes in turn.
    __m512i in_turn(const __m512 (&v)[4]) const { return _mm512_packus_epi16(words(v[0], v[1]), words(v[2], v[3])); }
    // Each register's bytes together, in order.
    __m512i in_order(const __m512 (&v)[4]) const {
        const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        return _mm512_permutexvar_epi32(order, in_turn(v));
    }
};

// Zero times each number, added up: NaN as soon as one is not finite.
struct WideWild {
    __m512 sum[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
    void see(int way, __m512 v) { sum[way] = _mm512_fmadd_ps(v, _mm512_setzero_ps(), sum[way]); }
    bool found() const {
        const __m512 all = _mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3]));
        return _mm512_cmp_ps_mask(all, all, _CMP_UNORD_Q) != 0;
    }
};

// Where token after token goes, each where its pixel lies; lines follow each other.
struct TokenPlace {
    const float *other;
    float *out;
    uint8_t *bytes;
    int64_t left;  // tokens of this line
};

// What becomes of the numbers of sixteen rows.
struct TokenWriter {
    const WideRounding rounding;
    const __m512 cap, least;
    const __mmask16 some;
    const int64_t tokens, out_token, byte_token, gap;
    bool *const strange;
    TokenPlace place;
    __m512 wild = _mm512_setzero_ps();

    TokenWriter(const TokenEnd &t, int64_t first_row)
        : rounding(t.grid ? *t.grid : Grid{}),
          cap(_mm512_set1_ps(t.relu ? t.cap : std::numeric_limits<float>::infinity())),
          least(_mm512_set1_ps(t.relu ? 0.0f : -std::numeric_limits<float>::infinity())),
          some(first_of(t.rows - first_row)),
          tokens(t.tokens),
          out_token(t.out_token),
          byte_token(t.byte_token),
          gap(t.byte_line - t.tokens * t.byte_token),
          strange(t.wild),
          place{t.other ? t.other + first_row : nullptr, t.out ? t.out + first_row : nullptr,
                t.bytes ? t.bytes + first_row : nullptr, t.tokens} {}

    // S tokens, each with its rows in order. What changes is held in registers meanwhile: bytes that are written could be
    // any variable's otherwise.
    template <int S>
    inline __attribute__((always_inline)) void write(__m512 (&v)[S]) {
        TokenPlace at = place;
        const __mmask16 own = some;
        const int64_t step = out_token;
#pragma GCC unroll 8
        for (int n = 0; n < S; ++n) {
            if (at.other) v[n] = _mm512_add_ps(v[n], load_some(own, at.other + n * step));
            v[n] = _mm512_min_ps(cap, _mm512_max_ps(least, v[n]));  // in this order it keeps NaN
            if (at.out) store_some(at.out + n * step, own, v[n]);
        }
        if (at.other) at.other += S * step;
        if (at.out) at.out += S * step;
        if (at.bytes) write_bytes<S>(v, at);
        place = at;
    }

    void end() const {
        if (place.bytes && _mm512_cmp_ps_mask(wild, wild, _CMP_UNORD_Q)) *strange = true;
    }

  private:
    template <int S>
    inline __attribute__((always_inline)) void write_bytes(const __m512 (&v)[S], TokenPlace &at) {
        __m512 seen = wild;
#pragma GCC unroll 8
        for (int n = 0; n < S; ++n) seen = _mm512_fmadd_ps(v[n], _mm512_setzero_ps(), seen);
        wild = seen;
        const int64_t step = byte_token, more = gap, line = tokens;
        const __mmask16 own = some;
        const auto store = [&](__m128i token) __attribute__((always_inline)) {
            if (own == 0xFFFF)
                _mm_storeu_si128(reinterpret_cast<__m128i *>(at.bytes), token);
            else
                store_some(at.bytes, own, token);
            at.bytes += step;
            if (--at.left == 0) at.left = line, at.bytes += more;
        };
        constexpr int together = S < 4 ? S : 4;
        __m512i all[(S + 3) / 4];
#pragma GCC unroll 2
        for (int first = 0; first < S; first += together) {
            const auto some_of = [&](int n) { return v[n < together ? first + n : first]; };
            all[first / 4] = rounding.in_order({some_of(0), some_of(1), some_of(2), some_of(3)});
        }
#pragma GCC unroll 2
        for (int first = 0; first < S; first += together) {
            const __m512i four = all[first / 4];
            const __m256i high = _mm512_extracti64x4_epi64(four, 1);
            store(_mm512_castsi512_si128(four));
            if (together > 1) store(_mm256_extracti128_si256(_mm512_castsi512_si256(four), 1));
            if (together > 2) store(_mm256_castsi256_si128(high));
            if (together > 3) store(_mm256_extracti128_si256(high, 1));
        }
    }
};

void end_tokens_wide(const TokenEnd &t) {
    const int64_t tokens = t.lines * t.tokens;
    for (int64_t r = 0; r < t.rows; r += 16) {
        TokenWriter writer(t, r);
        const float *from = t.from + r;
        const auto some = [&]<int S>(std::integral_constant<int, S>) {
            __m512 v[S];
#pragma GCC unroll 4
            for (int k = 0; k < S; ++k, from += t.from_token)
                v[k] = _mm512_maskz_mov_ps(writer.some, _mm512_loadu_ps(from));
            writer.write<S>(v);
        };
        int64_t n = 0;
        for (; n + 4 <= tokens; n += 4) some(std::integral_constant<int, 4>());
        for (; n < tokens; ++n) some(std::integral_constant<int, 1>());
        writer.end();
    }
}
