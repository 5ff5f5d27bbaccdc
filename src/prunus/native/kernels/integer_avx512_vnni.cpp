// Integer products for processors with AVX-512 VNNI and VL: one instruction multiplies four bytes and adds them up. The same file is
// compiled against SIMDe by the tests.
#include <cstring>
#include <limits>
#include <type_traits>

#include "integer.h"
#include "intrinsics.h"

namespace prunus {
namespace kernels {
namespace {

inline __m256i dot(__m256i sum, __m256i inputs, __m256i weights) {
#ifdef PRUNUS_EMULATE_AVX512
    return simde_mm256_dpbusd_epi32(sum, inputs, weights);
#else
    return _mm256_dpbusd_epi32(sum, inputs, weights);
#endif
}

#ifndef PRUNUS_EMULATE_AVX512
// What SIMDe has under these names alone (intrinsics.h).
inline __m512i wide_whole(__m512 v) { return _mm512_cvtps_epi32(v); }
inline __m512 wide_floats(__m512i v) { return _mm512_cvtepi32_ps(v); }
inline __m512 load_some(__mmask16 lanes, const float *p) { return _mm512_maskz_loadu_ps(lanes, p); }
inline void store_some(float *p, __mmask16 lanes, __m512 v) { _mm512_mask_storeu_ps(p, lanes, v); }
inline void store_some(uint8_t *p, __mmask64 lanes, __m512i v) { _mm512_mask_storeu_epi8(p, lanes, v); }
inline void store_some(uint8_t *p, __mmask16 lanes, __m128i v) { _mm_mask_storeu_epi8(p, lanes, v); }
#endif

#include "integer_body.h"
#include "integer_level.h"
#include "integer_wide_end.h"
#include "integer_wide.h"
#include "integer_wide_planes.h"
#include "integer_wide_turned.h"

constexpr IntegerLevel wide_level() {
    IntegerLevel level = integer_level("avx512-vnni");
    level.multiply = multiply_wide, level.together = tokens_together;
    level.planes = planes_wide, level.pixels = wide_pixels, level.fours = true;
    level.turned = true, level.ends = true, level.own = own_wide, level.end_tokens = end_tokens_wide;
    return level;
}

}  // namespace

const IntegerLevel &avx512_vnni_integers() {
    static constexpr IntegerLevel level = wide_level();
    return level;
}

}  // namespace kernels
}  // namespace prunus
