// The sums of integer products on 256-bit registers; part of integer_body.h.

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

template <int S>
inline void full(const uint8_t *unit, const int32_t *place, int32_t count, const uint8_t *x, int64_t pitch,
                 Sums<S> &sums) {
    for (int32_t u = 0; u < count; ++u, ++place) {
        const uint8_t *at = x + *place;
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k, unit += 64) {
            if (S == 1) _mm_prefetch(reinterpret_cast<const char *>(unit) + 2048, _MM_HINT_T0);
            const __m256i first = load(unit), second = load(unit + 32);
#pragma GCC unroll 8
            for (int n = 0; n < S; ++n) {
                int32_t four;
                std::memcpy(&four, at + n * pitch + 4 * k, 4);
                const __m256i inputs = _mm256_set1_epi32(four);
                sums.at[n][0] = dot(sums.at[n][0], inputs, first);
                sums.at[n][1] = dot(sums.at[n][1], inputs, second);
            }
        }
    }
}

template <int S>
inline void set(Sums<S> &to, const Sums<S> &from) {
#pragma GCC unroll 8
    for (int n = 0; n < S; ++n) to.at[n][0] = from.at[n][0], to.at[n][1] = from.at[n][1];
}

// Full banks stand apart: few layers have any, and one more loop beside the others costs them registers.
template <int S>
__attribute__((noinline)) void add_full(const IntegerTask &t, const uint8_t *x, Sums<S> &out) {
    Sums<S> sums;
    set(sums, out);
    full<S>(t.units, t.place, t.full, x, t.pitch, sums);
    set(out, sums);
}

// The sums of S tokens, from `start`. Not inline: its loops need all registers.
template <int S>
__attribute__((noinline)) void add_up(const IntegerTask &t, const uint8_t *x, const __m256i *start, Sums<S> &out) {
    Sums<S> sums;
#pragma GCC unroll 8
    for (int n = 0; n < S; ++n) sums.at[n][0] = start[0], sums.at[n][1] = start[1];
    if (t.full) {
        set(out, sums);
        add_full<S>(t, x, out);
        set(sums, out);
    }
    const uint8_t *unit = t.units + t.full * full_bytes;
    const int32_t *place = t.place + t.full;
    const int64_t pitch = t.pitch;
    quads<S>(unit, place, t.quads, x, pitch, sums);
    unit += t.quads * unit_bytes, place += t.quads;
    pairs<S>(unit, place, t.pairs, x, pitch, sums);
    unit += t.pairs * unit_bytes, place += t.pairs * 2;
    crossed<S>(unit, place, t.crossed, x, pitch, sums);
    set(out, sums);
}

// One token and two groups that read the same places: tables are read once for both, and loops are entered half as often.
__attribute__((noinline)) void add_up_twins(const IntegerTask &t, const IntegerTask &twin, Sums<2> &out) {
    const __m256i nibble = _mm256_set1_epi8(15), none = _mm256_setzero_si256();
    const __m256i odd = _mm256_set1_epi16(int16_t(0x8000)), even = _mm256_set1_epi16(0x0080);
    const uint8_t *x = t.x, *unit = t.units;
    const int64_t apart = twin.units - t.units;
    const int32_t *place = t.place;
    Sums<2> sums = {{{none, none}, {none, none}}};
    const auto add = [&](int g, const uint8_t *weights, __m256i first, __m256i second) {
        sums.at[g][0] = dot(sums.at[g][0], first, load(weights));
        sums.at[g][1] = dot(sums.at[g][1], second, load(weights + 32));
    };
    const auto soon = [](const uint8_t *at, int64_t ahead) {
        _mm_prefetch(reinterpret_cast<const char *>(at) + ahead, _MM_HINT_T0);
    };
    for (int32_t u = 0; u < t.full; ++u, ++place)
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k, unit += 64) {
            int32_t four;
            std::memcpy(&four, x + *place + 4 * k, 4);
            const __m256i inputs = _mm256_set1_epi32(four);
            soon(unit, 2048), soon(unit + apart, 2048);
            add(0, unit, inputs, inputs), add(1, unit + apart, inputs, inputs);
        }
    for (int32_t u = 0; u < t.quads; ++u, unit += unit_bytes, ++place) {
        const __m256i found = load_table(x + *place);
#pragma GCC unroll 2
        for (int g = 0; g < 2; ++g) {
            const uint8_t *at = unit + g * apart;
            soon(at, 768);
            const __m256i packed = load(at), first = _mm256_and_si256(packed, nibble);
            const __m256i second = _mm256_and_si256(_mm256_srli_epi16(packed, 4), nibble);
            add(g, at + 32, _mm256_shuffle_epi8(found, first), _mm256_shuffle_epi8(found, second));
        }
    }
    for (int32_t u = 0; u < t.pairs; ++u, unit += unit_bytes, place += 2) {
        const __m256i one = load_table(x + place[0]), two = load_table(x + place[1]);
#pragma GCC unroll 2
        for (int g = 0; g < 2; ++g) {
            const uint8_t *at = unit + g * apart;
            soon(at, 768);
            const __m256i packed = load(at), first = _mm256_and_si256(packed, nibble);
            const __m256i second = _mm256_and_si256(_mm256_srli_epi16(packed, 4), nibble);
            const __m256i a = _mm256_shuffle_epi8(one, first), b = _mm256_shuffle_epi8(two, second);
            add(g, at + 32, _mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b));
        }
    }
    for (int32_t u = 0; u < t.crossed; ++u, unit += unit_bytes, place += 4) {
        const __m256i bank[] = {load_table(x + place[0]), load_table(x + place[1]), load_table(x + place[2]),
                                load_table(x + place[3])};
#pragma GCC unroll 2
        for (int g = 0; g < 2; ++g) {
            const uint8_t *at = unit + g * apart;
            soon(at, 768);
            const __m256i packed = load(at), first = _mm256_and_si256(packed, nibble);
            const __m256i second = _mm256_and_si256(_mm256_srli_epi16(packed, 4), nibble);
            const __m256i a = _mm256_or_si256(_mm256_shuffle_epi8(bank[0], _mm256_or_si256(first, odd)),
                                              _mm256_shuffle_epi8(bank[1], _mm256_or_si256(first, even)));
            const __m256i b = _mm256_or_si256(_mm256_shuffle_epi8(bank[2], _mm256_or_si256(second, odd)),
                                              _mm256_shuffle_epi8(bank[3], _mm256_or_si256(second, even)));
            add(g, at + 32, _mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b));
        }
    }
    out = sums;
}
