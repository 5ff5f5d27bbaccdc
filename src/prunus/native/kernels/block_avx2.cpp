// A transformer's block between its products, for processors with AVX2 and FMA.
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "block.h"

namespace prunus {
namespace kernels {
namespace {

inline __m256 multiply_add(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
inline __m256 larger(__m256 a, __m256 b) { return _mm256_max_ps(a, b); }
inline __m256 smaller(__m256 a, __m256 b) { return _mm256_min_ps(a, b); }

#include "block_body.h"

}  // namespace

const BlockLevel &avx2_blocks() { return block_level; }

}  // namespace kernels
}  // namespace prunus
