// Four doubles a register.
#include "double.h"

#include <immintrin.h>

namespace prunus::dense {
namespace {

using Lanes = __m256d;
constexpr int lane_count = 4, filter_block = 4;
inline Lanes load(const double *from) { return _mm256_loadu_pd(from); }
inline void store(double *to, Lanes lanes) { _mm256_storeu_pd(to, lanes); }
inline Lanes spread(double value) { return _mm256_set1_pd(value); }
inline Lanes multiply_add(Lanes sum, Lanes a, Lanes b) { return _mm256_fmadd_pd(a, b, sum); }

#include "body.h"

}  // namespace

const Kernels avx2_kernels{filter_block, space, run};

}  // namespace prunus::dense
