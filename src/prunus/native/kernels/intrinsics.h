// Intrinsics up to AVX-512, or SIMDe's functions of the same names, with which the tests compile the files that no machine
// at hand can run. What SIMDe lacks has a name of its own.
#pragma once

#include <cstdint>

#ifdef PRUNUS_EMULATE_AVX512
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>

namespace prunus {
namespace kernels {

inline __m512i wide_whole(__m512 v) {
    const __m256i low = _mm256_cvtps_epi32(_mm512_castps512_ps256(v));
    const __m512i turned = _mm512_shuffle_i32x4(_mm512_castps_si512(v), _mm512_castps_si512(v), 0x4E);
    const __m256i high = _mm256_cvtps_epi32(_mm256_castsi256_ps(_mm512_castsi512_si256(turned)));
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
inline __m512 wide_floats(__m512i v) {
    const __m256 low = _mm256_cvtepi32_ps(_mm512_castsi512_si256(v));
    const __m256 high = _mm256_cvtepi32_ps(_mm512_extracti64x4_epi64(v, 1));
    const __m512i both = _mm512_castsi256_si512(_mm256_castps_si256(low));
    return _mm512_castsi512_ps(_mm512_inserti64x4(both, _mm256_castps_si256(high), 1));
}
inline __m512 load_some(__mmask16 lanes, const float *p) {
    float out[16];
    for (int i = 0; i < 16; ++i) out[i] = lanes >> i & 1 ? p[i] : 0.0f;
    return _mm512_loadu_ps(out);
}
inline void store_some(float *p, __mmask16 lanes, __m512 v) {
    float out[16];
    _mm512_storeu_ps(out, v);
    for (int i = 0; i < 16; ++i)
        if (lanes >> i & 1) p[i] = out[i];
}
inline void store_some(uint8_t *p, __mmask64 lanes, __m512i v) {
    uint8_t out[64];
    _mm512_storeu_si512(out, v);
    for (int i = 0; i < 64; ++i)
        if (lanes >> i & 1) p[i] = out[i];
}
inline void store_some(uint8_t *p, __mmask16 lanes, __m128i v) {
    uint8_t out[16];
    _mm_storeu_si128(reinterpret_cast<__m128i *>(out), v);
    for (int i = 0; i < 16; ++i)
        if (lanes >> i & 1) p[i] = out[i];
}

}  // namespace kernels
}  // namespace prunus
#else
#include <immintrin.h>
#endif
