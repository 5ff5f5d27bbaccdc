// Selection with 512-bit registers: sixteen keys are one of them. Only AVX-512 F, BW and VL are used. The tests compile
// this file a second time with PRUNUS_EMULATED_AVX512, where SIMDe stands in for the processor.
#include "select.h"

#ifdef PRUNUS_EMULATED_AVX512
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#ifndef _mm512_cvtepi16_epi32  // missing in SIMDe 0.7
#define _mm512_cvtepi16_epi32(packed)                                                                 \
    _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(packed))), \
                       _mm256_cvtepi16_epi32(_mm256_extracti128_si256(packed, 1)), 1)
#endif
#else
#include <immintrin.h>
#endif

#include <utility>

namespace {

using Lanes = __m512i;
using Keys = __m512i;
constexpr int lane_count = 16;

inline Lanes lanes_at(const std::int32_t *from) { return _mm512_loadu_si512(from); }
inline void lanes_to(std::int32_t *to, Lanes lanes) { _mm512_storeu_si512(to, lanes); }
inline Lanes lower(Lanes a, Lanes b) { return _mm512_min_epi32(a, b); }
inline Lanes upper(Lanes a, Lanes b) { return _mm512_max_epi32(a, b); }

#include "network.h"

inline Keys load(const std::int32_t *from) { return lanes_at(from); }

inline Keys load(const std::int16_t *from) {
    return _mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(from)));
}

inline void store(std::int32_t *to, Keys keys) { lanes_to(to, keys); }
inline Keys splat(std::int32_t value) { return _mm512_set1_epi32(value); }
inline Keys both(Keys a, Keys b) { return _mm512_and_si512(a, b); }
inline Keys larger(Keys a, Keys b) { return upper(a, b); }

inline Keys negate_where(Keys magnitude, Keys bits) {
    const auto negative = _mm512_cmpgt_epi32_mask(_mm512_setzero_si512(), bits);
    return _mm512_mask_sub_epi32(magnitude, negative, _mm512_setzero_si512(), magnitude);
}

inline std::int32_t largest_of(Keys keys) {
    alignas(64) std::int32_t lanes[16];
    store(lanes, keys);
    std::int32_t top = lanes[0];
    for (int i = 1; i < 16; ++i) top = lanes[i] > top ? lanes[i] : top;
    return top;
}

inline unsigned above(Keys a, Keys b) { return unsigned(_mm512_cmpgt_epi32_mask(a, b)); }
inline unsigned same(Keys a, Keys b) { return unsigned(_mm512_cmpeq_epi32_mask(a, b)); }

// Compressed in a register and stored whole: storing a compressed register directly is slow on some processors. The
// caller leaves room for sixteen keys.
inline std::int32_t *append(std::int32_t *to, Keys keys, unsigned bits) {
    store(to, _mm512_maskz_compress_epi32(std::uint16_t(bits), keys));
    return to + __builtin_popcount(bits);
}

inline void spread(std::uint8_t *to, unsigned bits) {
    _mm_storeu_si128(reinterpret_cast<__m128i *>(to), _mm_maskz_mov_epi8(std::uint16_t(bits), _mm_set1_epi8(1)));
}

// Pairs, then fours inside 128-bit quarters, then the quarters themselves.
inline void transpose(const std::int32_t *from, std::int32_t *to) {
    __m512i row[16], mixed[16];
    for (int i = 0; i < 16; ++i) row[i] = lanes_at(from + 16 * i);
    for (int i = 0; i < 16; i += 4) {
        const __m512i a = _mm512_unpacklo_epi32(row[i], row[i + 1]), b = _mm512_unpackhi_epi32(row[i], row[i + 1]);
        const __m512i c = _mm512_unpacklo_epi32(row[i + 2], row[i + 3]),
                      d = _mm512_unpackhi_epi32(row[i + 2], row[i + 3]);
        mixed[i] = _mm512_unpacklo_epi64(a, c);
        mixed[i + 1] = _mm512_unpackhi_epi64(a, c);
        mixed[i + 2] = _mm512_unpacklo_epi64(b, d);
        mixed[i + 3] = _mm512_unpackhi_epi64(b, d);
    }
    for (int j = 0; j < 4; ++j) {
        const __m512i a = _mm512_shuffle_i32x4(mixed[j], mixed[j + 4], 0x88);
        const __m512i b = _mm512_shuffle_i32x4(mixed[j + 8], mixed[j + 12], 0x88);
        const __m512i c = _mm512_shuffle_i32x4(mixed[j], mixed[j + 4], 0xdd);
        const __m512i d = _mm512_shuffle_i32x4(mixed[j + 8], mixed[j + 12], 0xdd);
        lanes_to(to + 16 * j, _mm512_shuffle_i32x4(a, b, 0x88));
        lanes_to(to + 16 * (j + 8), _mm512_shuffle_i32x4(a, b, 0xdd));
        lanes_to(to + 16 * (j + 4), _mm512_shuffle_i32x4(c, d, 0x88));
        lanes_to(to + 16 * (j + 12), _mm512_shuffle_i32x4(c, d, 0xdd));
    }
}

inline void exchange(std::int32_t *low, std::int32_t *high) {
    const Lanes a = lanes_at(low), b = lanes_at(high);
    lanes_to(low, lower(a, b));
    lanes_to(high, upper(a, b));
}

#include "body.h"

}  // namespace

namespace prunus::selection {
const Kernels avx512_kernels = {kernel_table<std::int32_t>(), kernel_table<std::int16_t>()};
}
