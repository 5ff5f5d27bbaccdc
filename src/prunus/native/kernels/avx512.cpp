// Kernels for processors with AVX-512 (F, BW, DQ, VL). The same file is compiled against SIMDe by the tests, so that it
// is proven on machines that do not have these instructions.
#include "format.h"
#include "intrinsics.h"

namespace prunus {
namespace kernels {
namespace {

using vec = __m512;
constexpr int W = 16;
constexpr int max_vectors = 4;  // with four rows, as many sums as there are registers for
inline vec load(const float *p) { return _mm512_loadu_ps(p); }
inline void store(float *p, vec v) { _mm512_storeu_ps(p, v); }
inline vec fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
inline vec add(vec a, vec b) { return _mm512_add_ps(a, b); }
inline vec all(float v) { return _mm512_set1_ps(v); }
inline vec positive(vec v) { return _mm512_max_ps(_mm512_setzero_ps(), v); }  // in this order it keeps NaN
inline vec at_most(vec cap, vec v) { return _mm512_min_ps(cap, v); }          // likewise

// The lanes [first, last) of a register, and a load that touches no others: they are zero.
using some = uint16_t;
inline some lanes_between(int64_t first, int64_t last) {
    const auto below = [](int64_t n) { return n <= 0 ? 0u : n >= W ? 0xFFFFu : (1u << n) - 1; };
    return some(below(last) & ~below(first));
}
#ifdef PRUNUS_EMULATE_AVX512
inline vec load_some(const float *p, some lanes) {
    float out[W];
    for (int i = 0; i < W; ++i) out[i] = lanes >> i & 1 ? p[i] : 0.0f;
    return load(out);
}
inline vec every_second(vec a, vec b) {
    float both[2 * W], out[W];
    store(both, a), store(both + W, b);
    for (int i = 0; i < W; ++i) out[i] = both[2 * i];
    return load(out);
}
#else
inline vec load_some(const float *p, some lanes) { return _mm512_maskz_loadu_ps(lanes, p); }

// Lanes 0, 2, 4 ... of a register and of the one that follows it.
inline vec every_second(vec a, vec b) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return _mm512_permutex2var_ps(a, even, b);
}
#endif

// Sixteen small integers as 32-bit ones.
#ifdef PRUNUS_EMULATE_AVX512
template <typename T>
inline __m512i widen(const T *p) {
    int32_t wide[16];
    for (int i = 0; i < 16; ++i) wide[i] = int32_t(p[i]);
    return _mm512_loadu_si512(wide);
}
inline vec to_floats(__m512i v) {
    int32_t whole[16];
    float out[16];
    _mm512_storeu_si512(whole, v);
    for (int i = 0; i < 16; ++i) out[i] = float(whole[i]);
    return load(out);
}
#else
inline vec to_floats(__m512i v) { return _mm512_cvtepi32_ps(v); }
inline __m512i widen(const uint8_t *p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
}
inline __m512i widen(const int8_t *p) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
}
inline __m512i widen(const uint16_t *p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
}
#endif

// Each of R neighbouring values in all lanes of its own register: one load for four of them, then in-lane moves.
template <int R>
inline void splat_rows(const float *p, vec *out) {
#pragma GCC unroll 2
    for (int i = 0; i < R; i += 4) {
        const vec four = _mm512_broadcast_f32x4(_mm_loadu_ps(p + i));
        out[i] = _mm512_shuffle_ps(four, four, 0x00), out[i + 1] = _mm512_shuffle_ps(four, four, 0x55);
        out[i + 2] = _mm512_shuffle_ps(four, four, 0xAA), out[i + 3] = _mm512_shuffle_ps(four, four, 0xFF);
    }
}

#include "place_avx2.h"
#include "tile.h"
#include "transpose8_avx2.h"
#include "transpose.h"

inline vec load_values(const float *p) { return _mm512_loadu_ps(p); }
inline vec load_values(const uint16_t *p) { return _mm512_castsi512_ps(_mm512_slli_epi32(widen(p), 16)); }
inline vec load_values(const int8_t *p) { return to_floats(widen(p)); }

// A bank of 16 inputs is one register, so the index inside the bank is one permute; it reads only the low four bits of
// each lane, so the odd slot of a pair takes a shift and no mask. Up to six samples share the decoding; below four, the
// slots alternate between several sums so that the multiply-adds need not wait for each other.
template <int S, int C, typename T>
inline void permute_slot(__m512i index, const T *values, const float *bank, int64_t ldx, vec (&sum)[C][S], int chain) {
    const vec v = load_values(values);
#pragma GCC unroll 8
    for (int n = 0; n < S; ++n)
        sum[chain][n] = fma(v, _mm512_permutexvar_ps(index, load(bank + n * ldx)), sum[chain][n]);
}

template <int S, int C, typename T>
inline void permute_group(const Packed &p, int64_t group, const float *x, int64_t ldx, float *out) {
    const T *values = static_cast<const T *>(p.values) + p.slot_start[group] * lanes;
    const uint8_t *packet = p.index + p.packet_start[group] * lanes;
    const int32_t *schedule = p.schedule + p.schedule_start[group];
    const int64_t slots = p.slots(group);
    vec sum[C][S];
    for (int c = 0; c < C; ++c)
        for (int n = 0; n < S; ++n) sum[c][n] = _mm512_setzero_ps();
    int64_t s = 0;
    for (; s + 8 <= slots; s += 8) {
#pragma GCC unroll 4
        for (int i = 0; i < 8; i += 2, packet += lanes, schedule += 2, values += 2 * lanes) {
            const __m512i index = widen(packet);
            _mm_prefetch(reinterpret_cast<const char *>(values) + 1024, _MM_HINT_T0);
            _mm_prefetch(reinterpret_cast<const char *>(values) + 1088, _MM_HINT_T0);
            permute_slot(index, values, x + int64_t(schedule[0]) * 16, ldx, sum, i % C);
            permute_slot(_mm512_srli_epi32(index, 4), values + lanes, x + int64_t(schedule[1]) * 16, ldx, sum,
                         (i + 1) % C);
        }
    }
    for (; s < slots; ++s, ++schedule, values += lanes) {
        __m512i index = widen(packet);
        if (s % 2) index = _mm512_srli_epi32(index, 4), packet += lanes;
        permute_slot(index, values, x + int64_t(*schedule) * 16, ldx, sum, 0);
    }
    for (int n = 0; n < S; ++n) {
        vec total = sum[0][n];
        for (int c = 1; c < C; ++c) total = _mm512_add_ps(total, sum[c][n]);
        store(out + n * lanes, total);
    }
}

template <typename T>
inline void permute_samples(const Packed &p, const Ready *, int64_t group, const float *x, int64_t ldx, const uint8_t *,
                            int64_t, int samples, float *out) {
    int n = 0;
    for (; n + 6 <= samples; n += 6) permute_group<6, 1, T>(p, group, x + n * ldx, ldx, out + n * lanes);
    for (; n + 4 <= samples; n += 4) permute_group<4, 2, T>(p, group, x + n * ldx, ldx, out + n * lanes);
    for (; n + 2 <= samples; n += 2) permute_group<2, 4, T>(p, group, x + n * ldx, ldx, out + n * lanes);
    for (; n < samples; ++n) permute_group<1, 8, T>(p, group, x + n * ldx, ldx, out + n * lanes);
}

#include "level.h"

}  // namespace

const Level &avx512_level() {
    static constexpr Level level = level_of("avx512", {.up_to = 31, .bank = 16});
    return level;
}

}  // namespace kernels
}  // namespace prunus
