// The sums of integer products on 512-bit registers: the 64 weights of a unit are one register, and their inputs are
// looked up straight into its order. Included after integer_body.h, which finishes what stays on 256 bits.

constexpr int tokens_together = 8;

inline __m512i load_wide(const uint8_t *at) { return _mm512_loadu_si512(at); }
inline __m512i load_wide_table(const uint8_t *at) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i *>(at)));
}
inline __m512i both(__m256i low, __m256i high) { return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1); }

// Two nibbles of each byte, and for units of several banks in the order of the weights.
struct Nibbles {
    __m256i low, high;
    explicit Nibbles(const uint8_t *unit) {
        const __m256i nibble = _mm256_set1_epi8(15), packed = load(unit);
        low = _mm256_and_si256(packed, nibble);
        high = _mm256_and_si256(_mm256_srli_epi16(packed, 4), nibble);
    }
    __m512i plain() const { return both(low, high); }
    __m512i joined() const { return both(_mm256_unpacklo_epi16(low, high), _mm256_unpackhi_epi16(low, high)); }
};

template <int S>
struct WideSums {
    __m512i at[S];  // rows 0-3, 8-11, 4-7, 12-15
};

template <int S>
inline void soon(const uint8_t *at, int64_t ahead) {
    if (S == 1) _mm_prefetch(reinterpret_cast<const char *>(at) + ahead, _MM_HINT_T0);
}

// Each unit multiplies what `find(token's inputs)` gives with its weights.
template <int S, class Find>
inline void add_unit(const uint8_t *weights, const uint8_t *x, int64_t pitch, WideSums<S> &sums, const Find &find) {
    const __m512i own = load_wide(weights);
#pragma GCC unroll 8
    for (int n = 0; n < S; ++n) sums.at[n] = _mm512_dpbusd_epi32(sums.at[n], find(x + n * pitch), own);
}

// Full banks stand apart, as in integer_sums.h.
template <int S>
__attribute__((noinline)) void add_full_wide(const IntegerTask &t, const uint8_t *x, WideSums<S> &out) {
    WideSums<S> sums = out;
    const uint8_t *unit = t.units;
    for (int32_t u = 0; u < t.full; ++u)
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k, unit += 64) {
            soon<S>(unit, 2048);
            add_unit<S>(unit, x + t.place[u] + 4 * k, t.pitch, sums, [](const uint8_t *at) {
                int32_t four;
                std::memcpy(&four, at, 4);
                return _mm512_set1_epi32(four);
            });
        }
    out = sums;
}

// The sums of S tokens, from `start`. Not inline: its loops need all registers.
template <int S>
__attribute__((noinline)) void add_up_wide(const IntegerTask &t, const uint8_t *x, __m512i start, WideSums<S> &out) {
    WideSums<S> sums;
#pragma GCC unroll 8
    for (int n = 0; n < S; ++n) sums.at[n] = start;
    if (t.full) {
        out = sums;
        add_full_wide<S>(t, x, out);
        sums = out;
    }
    const uint8_t *unit = t.units + t.full * full_bytes;
    const int32_t *place = t.place + t.full;
    const int64_t pitch = t.pitch;
    for (int32_t u = 0; u < t.quads; ++u, unit += unit_bytes, ++place) {
        soon<S>(unit, 768);
        const __m512i index = Nibbles(unit).plain();
        add_unit<S>(unit + 32, x + place[0], pitch, sums,
                    [&](const uint8_t *at) { return _mm512_shuffle_epi8(load_wide_table(at), index); });
    }
    for (int32_t u = 0; u < t.pairs; ++u, unit += unit_bytes, place += 2) {
        soon<S>(unit, 768);
        const __m512i index = Nibbles(unit).joined();
        const __m512i first = _mm512_or_si512(index, _mm512_set1_epi32(int(0x80800000)));
        const __m512i second = _mm512_or_si512(index, _mm512_set1_epi32(0x00008080));
        const uint8_t *one = x + place[0];
        const int64_t two = place[1] - place[0];
        add_unit<S>(unit + 32, one, pitch, sums, [&](const uint8_t *at) {
            return _mm512_or_si512(_mm512_shuffle_epi8(load_wide_table(at), first),
                                   _mm512_shuffle_epi8(load_wide_table(at + two), second));
        });
    }
    for (int32_t u = 0; u < t.crossed; ++u, unit += unit_bytes, place += 4) {
        soon<S>(unit, 768);
        const __m512i index = Nibbles(unit).joined();
        __m512i own[4];
#pragma GCC unroll 4
        for (int b = 0; b < 4; ++b)
            own[b] = _mm512_or_si512(index, _mm512_set1_epi32(int(0x80808080u & ~(0x80u << 8 * b))));
        add_unit<S>(unit + 32, x, pitch, sums, [&](const uint8_t *at) {
            const auto found = [&](int b) { return _mm512_shuffle_epi8(load_wide_table(at + place[b]), own[b]); };
            return _mm512_or_si512(_mm512_ternarylogic_epi32(found(0), found(1), found(2), 0xFE), found(3));
        });
    }
    out = sums;
}

// The rows in the order of the sums, as they are or back: applied twice it is undone.
inline __m512 turn_rows(__m512 v) { return quarters<0xD8>(v, v); }
inline __m512 both(const Rows &rows) {
    return _mm512_castsi512_ps(both(_mm256_castps_si256(rows.at[0]), _mm256_castps_si256(rows.at[1])));
}

// What tokens with one step share.
struct WideShared {
    const __m512 scale, bias;
    const __m512i start;
    explicit WideShared(const Shared &s)
        : scale(both(s.scale)), bias(both(s.bias)), start(both(s.start[0], s.start[1])) {}
    // In the order of the rows.
    __m512 numbers(__m512i sums) const {
        return turn_rows(_mm512_add_ps(_mm512_mul_ps(wide_floats(sums), scale), bias));
    }
};

template <int S>
inline void tokens_wide(const IntegerTask &t, int64_t line, int token, const WideShared &shared) {
    WideSums<S> found;
    add_up_wide<S>(t, t.x + line * t.line + token * t.pitch, shared.start, found);
    float *out = t.out + line * t.out_line + token * t.out_token;
#pragma GCC unroll 8
    for (int n = 0; n < S; ++n, out += t.out_token) {
        __m512 v = shared.numbers(found.at[n]);
        if (t.relu) v = _mm512_max_ps(_mm512_setzero_ps(), v);  // in this order it keeps NaN
        if (t.rows == lanes)
            _mm512_storeu_ps(out, v);
        else
            store_some(out, first_of(t.rows), v);
    }
}

// The same where a writer takes the numbers.
struct WideWriting {
    const WideShared &shared;
    TokenWriter &writer;
};

template <int S>
inline void tokens_wide(const IntegerTask &t, int64_t line, int token, const WideWriting &writing) {
    WideSums<S> found;
    add_up_wide<S>(t, t.x + line * t.line + token * t.pitch, writing.shared.start, found);
    __m512 v[S];
#pragma GCC unroll 8
    for (int n = 0; n < S; ++n) v[n] = writing.shared.numbers(found.at[n]);
    writing.writer.write<S>(v);
}

template <int S>
inline void tokens_wide(const IntegerTask &t, int64_t line, int token, const Shared &shared) {
    WideSums<S> found;
    add_up_wide<S>(t, t.x + line * t.line + token * t.pitch, both(shared.start[0], shared.start[1]), found);
    Sums<S> sums;
#pragma GCC unroll 8
    for (int n = 0; n < S; ++n) {
        sums.at[n][0] = _mm512_castsi512_si256(found.at[n]);
        sums.at[n][1] = _mm512_extracti64x4_epi64(found.at[n], 1);
    }
    end<S, false>(t, t.step + token, t.out + line * t.out_line + token * t.out_token, shared, sums);
}

template <class S>
inline void all_lines_wide(const IntegerTask &t, const S &shared) {
    for (int64_t i = 0; i < t.lines; ++i) {
        int n = 0;
        for (; n + tokens_together <= t.tokens; n += tokens_together) tokens_wide<8>(t, i, n, shared);
        if (t.tokens - n >= 4) tokens_wide<4>(t, i, n, shared), n += 4;
        if (t.tokens - n >= 2) tokens_wide<2>(t, i, n, shared), n += 2;
        if (t.tokens - n == 1) tokens_wide<1>(t, i, n, shared);
    }
}

void multiply_wide(const IntegerTask &t) {
    if (t.twin) return both_groups(t);
    const Shared shared(t, t.one_step);
    if (!t.one_step) return all_lines_wide(t, shared);
    const WideShared wide(shared);
    if (!t.end) return all_lines_wide(t, wide);
    TokenWriter writer(*t.end, 0);
    all_lines_wide(t, WideWriting{wide, writer});
    writer.end();
}
