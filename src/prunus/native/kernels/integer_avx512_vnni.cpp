// Integer products for processors with AVX-512 VNNI and VL: one instruction multiplies four bytes and adds them up. The same file is
// compiled against SIMDe by the tests.
#ifdef PRUNUS_EMULATE_AVX512
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#else
#include <immintrin.h>
#endif

#include <cstring>

#include "integer.h"

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

#include "integer_body.h"

}  // namespace

const IntegerLevel &avx512_vnni_integers() {
    static constexpr IntegerLevel level = {.name = "avx512-vnni",
                                           .measure = measure,
                                           .to_bytes = to_bytes,
                                           .planes_to_bytes = planes_to_bytes,
                                           .multiply = multiply};
    return level;
}

}  // namespace kernels
}  // namespace prunus
