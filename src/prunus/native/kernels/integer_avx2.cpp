// Integer products for processors with AVX2.
#include <immintrin.h>

#include <cstring>

#include "integer.h"

namespace prunus {
namespace kernels {
namespace {

inline __m256i dot(__m256i sum, __m256i inputs, __m256i weights) {
    const __m256i pairs = _mm256_maddubs_epi16(inputs, weights);  // at most 2 * 127 * 128: never saturates
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

#include "integer_body.h"
#include "integer_level.h"

}  // namespace

const IntegerLevel &avx2_integers() {
    static constexpr IntegerLevel level = integer_level("avx2");
    return level;
}

}  // namespace kernels
}  // namespace prunus
