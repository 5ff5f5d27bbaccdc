// Kernels for processors with AVX2 and FMA.
#include <immintrin.h>

#include "format.h"

namespace prunus {
namespace kernels {
namespace {

using vec = __m256;
constexpr int W = 8;
constexpr int max_vectors = 3;  // with four rows, as many sums as there are registers for
inline vec load(const float *p) { return _mm256_loadu_ps(p); }
inline void store(float *p, vec v) { _mm256_storeu_ps(p, v); }
inline vec fma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
inline vec add(vec a, vec b) { return _mm256_add_ps(a, b); }
inline vec all(float v) { return _mm256_set1_ps(v); }
inline vec positive(vec v) { return _mm256_max_ps(_mm256_setzero_ps(), v); }  // in this order it keeps NaN

// The lanes [first, last) of a register, and a load that touches no others: they are zero.
using some = __m256i;
inline some lanes_between(int64_t first, int64_t last) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i from = _mm256_set1_epi32(int(first < 0 ? 0 : first > W ? W : first));
    const __m256i to = _mm256_set1_epi32(int(last < 0 ? 0 : last > W ? W : last));
    return _mm256_andnot_si256(_mm256_cmpgt_epi32(from, lane), _mm256_cmpgt_epi32(to, lane));
}
inline vec load_some(const float *p, some lanes) { return _mm256_maskload_ps(p, lanes); }

// Lanes 0, 2, 4 ... of a register and of the one that follows it.
inline vec every_second(vec a, vec b) {
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88)), 0xD8));
}

// Each of R neighbouring values in all lanes of its own register: one load for four of them, then in-lane moves.
template <int R>
inline void splat_rows(const float *p, vec *out) {
#pragma GCC unroll 2
    for (int i = 0; i < R; i += 4) {
        const vec four = _mm256_broadcast_ps(reinterpret_cast<const __m128 *>(p + i));
        out[i] = _mm256_permute_ps(four, 0x00), out[i + 1] = _mm256_permute_ps(four, 0x55);
        out[i + 2] = _mm256_permute_ps(four, 0xAA), out[i + 3] = _mm256_permute_ps(four, 0xFF);
    }
}

#include "place_avx2.h"
#include "tile.h"
#include "transpose8_avx2.h"
#include "transpose.h"

// Four values of each of two slots, sixteen lanes apart.
inline vec load_pair(const float *p) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm_loadu_ps(p + lanes), 1);
}
inline vec load_pair(const uint16_t *p) {
    const __m128i both = _mm_unpacklo_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p)),
                                            _mm_loadl_epi64(reinterpret_cast<const __m128i *>(p + lanes)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(both), 16));
}
inline vec load_pair(const int8_t *p) {
    const __m128i both = _mm_unpacklo_epi32(_mm_loadu_si32(p), _mm_loadu_si32(p + lanes));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(both));
}

// The sixteen floats of a bank as four planes of bytes, which is what a byte shuffle can look up.
inline void byte_planes(const float *bank, __m128i (&plane)[4]) {
    const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m128i a[4];
    for (int i = 0; i < 4; ++i) a[i] = _mm_shuffle_epi8(_mm_castps_si128(_mm_loadu_ps(bank + 4 * i)), order);
    const __m128i b0 = _mm_unpacklo_epi32(a[0], a[1]), b1 = _mm_unpacklo_epi32(a[2], a[3]);
    const __m128i b2 = _mm_unpackhi_epi32(a[0], a[1]), b3 = _mm_unpackhi_epi32(a[2], a[3]);
    plane[0] = _mm_unpacklo_epi64(b0, b1), plane[1] = _mm_unpackhi_epi64(b0, b1);
    plane[2] = _mm_unpacklo_epi64(b2, b3), plane[3] = _mm_unpackhi_epi64(b2, b3);
}

// For each pair of slots, sixteen columns of the bank after the other and plane by plane, the table of the even slot's
// bank beside that of the odd one's.
void prepare_tables(const int32_t *schedule, int64_t slots, int64_t bank, const float *x, uint8_t *tables) {
    const int64_t parts = bank / 16;
    for (int64_t part = 0; part < parts; ++part) {
        __m128i plane[4] = {};
        uint8_t *to = tables + part * 128;
        for (int64_t s = 0; s < slots + slots % 2; ++s) {
            if (s < slots && (s == 0 || schedule[s] != schedule[s - 1]))
                byte_planes(x + schedule[s] * bank + part * 16, plane);
            uint8_t *out = to + s / 2 * 128 * parts + s % 2 * 16;
            for (int i = 0; i < 4; ++i) _mm_store_si128(reinterpret_cast<__m128i *>(out + 32 * i), plane[i]);
        }
    }
}

// Two slots of sixteen rows at once. A permute across the register costs this machine class two operations and a bank
// is two registers, so the inputs are looked up byte by byte instead: four shuffles within lanes, one for each byte of
// a float, then eight interleaves put the floats together. The even slot stays in the low lane, the odd in the high.
// A bank of 32 or 64 columns is looked up in two or four parts; a shuffle gives zero where the index lies in another.
template <int parts, typename T>
inline void permute_pair(const uint8_t *tables, __m256i index, const T *values, vec (&sum)[4]) {
    __m256i byte[4];
#pragma GCC unroll 4
    for (int part = 0; part < parts; ++part) {
        __m256i inside = index;
        if (parts > 1)
            inside =
                _mm256_adds_epu8(_mm256_sub_epi8(index, _mm256_set1_epi8(char(16 * part))), _mm256_set1_epi8(0x70));
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            const __m256i *table = reinterpret_cast<const __m256i *>(tables + 128 * part + 32 * i);
            const __m256i found = _mm256_shuffle_epi8(_mm256_load_si256(table), inside);
            byte[i] = part ? _mm256_or_si256(byte[i], found) : found;
        }
    }
    const __m256i a0 = _mm256_unpacklo_epi8(byte[0], byte[1]), b0 = _mm256_unpacklo_epi8(byte[2], byte[3]);
    const __m256i a1 = _mm256_unpackhi_epi8(byte[0], byte[1]), b1 = _mm256_unpackhi_epi8(byte[2], byte[3]);
    sum[0] = fma(load_pair(values), _mm256_castsi256_ps(_mm256_unpacklo_epi16(a0, b0)), sum[0]);
    sum[1] = fma(load_pair(values + 4), _mm256_castsi256_ps(_mm256_unpackhi_epi16(a0, b0)), sum[1]);
    sum[2] = fma(load_pair(values + 8), _mm256_castsi256_ps(_mm256_unpacklo_epi16(a1, b1)), sum[2]);
    sum[3] = fma(load_pair(values + 12), _mm256_castsi256_ps(_mm256_unpackhi_epi16(a1, b1)), sum[3]);
}

// The indices of two slots: halves of the same bytes, or one byte each. `alone`: the second slot does not exist.
template <int parts>
inline __m256i pair_index(const uint8_t *packet, bool alone) {
    const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i *>(packet));
    if (parts > 1)
        return alone ? _mm256_zextsi128_si256(first) : _mm256_loadu_si256(reinterpret_cast<const __m256i *>(packet));
    const __m256i both = _mm256_broadcastsi128_si256(first);
    const __m256i split = _mm256_blend_epi32(both, _mm256_srli_epi16(both, 4), 0xF0);
    return _mm256_and_si256(split, _mm256_set1_epi8(15));
}

template <int parts, typename T>
inline void permute_group(const Packed &p, int64_t group, const uint8_t *tables, float *out) {
    const T *values = static_cast<const T *>(p.values) + p.slot_start[group] * lanes;
    const uint8_t *packet = p.index + p.packet_start[group] * lanes;
    int64_t slots = p.slots(group);
    vec sum[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    for (; slots >= 2; slots -= 2, packet += (parts > 1 ? 2 : 1) * lanes, tables += 128 * parts, values += 2 * lanes) {
        _mm_prefetch(reinterpret_cast<const char *>(values) + 1024, _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char *>(values) + 1088, _MM_HINT_T0);
        permute_pair<parts>(tables, pair_index<parts>(packet, false), values, sum);
    }
    if (slots) {
        T last[2 * lanes] = {};
        for (int i = 0; i < lanes; ++i) last[i] = values[i];
        permute_pair<parts>(tables, pair_index<parts>(packet, true), last, sum);
    }
    for (int i = 0; i < 4; ++i)
        _mm_storeu_ps(out + 4 * i, _mm_add_ps(_mm256_castps256_ps128(sum[i]), _mm256_extractf128_ps(sum[i], 1)));
}

template <typename T>
void permute_samples(const Packed &p, int64_t group, const float *, int64_t, const uint8_t *tables,
                     int64_t table_stride, int samples, float *out) {
    for (int n = 0; n < samples; ++n, tables += table_stride, out += lanes) {
        switch (p.bank) {
            case 16: permute_group<1, T>(p, group, tables, out); break;
            case 32: permute_group<2, T>(p, group, tables, out); break;
            default: permute_group<4, T>(p, group, tables, out); break;
        }
    }
}

#include "level.h"

}  // namespace

const Level &avx2_level() {
    static constexpr Level level =
        level_of("avx2", {.up_to = 3, .bank = 64, .table_bytes = 128, .prepare = prepare_tables});
    return level;
}

}  // namespace kernels
}  // namespace prunus
