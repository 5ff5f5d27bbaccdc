// Integer products for processors with AVX-VNNI: one instruction multiplies four bytes and adds them up. The same file is
// compiled against SIMDe by the tests.
#include <cstring>

#include "integer.h"
#include "intrinsics.h"

namespace prunus {
namespace kernels {
namespace {

inline __m256i dot(__m256i sum, __m256i inputs, __m256i weights) {
#ifdef PRUNUS_EMULATE_AVX512
    return simde_mm256_dpbusd_epi32(sum, inputs, weights);
#else
    return _mm256_dpbusd_avx_epi32(sum, inputs, weights);
#endif
}

#include "integer_body.h"
#include "integer_level.h"

void planes_in_fours(const PlaneTask &t) { planes_of<InFours>(t); }

constexpr IntegerLevel level_in_fours() {
    IntegerLevel level = integer_level("avx-vnni");
    level.planes = planes_in_fours, level.fours = true;
    return level;
}

}  // namespace

const IntegerLevel &avx_vnni_integers() {
    static constexpr IntegerLevel level = level_in_fours();
    return level;
}

}  // namespace kernels
}  // namespace prunus
