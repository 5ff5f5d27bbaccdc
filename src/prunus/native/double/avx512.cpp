// Eight doubles a register.
#include "double.h"

#include <immintrin.h>

namespace prunus::dense {
namespace {

using Lanes = __m512d;
constexpr int lane_count = 8, filter_block = 8;
inline Lanes load(const double *from) { return _mm512_loadu_pd(from); }
inline void store(double *to, Lanes lanes) { _mm512_storeu_pd(to, lanes); }
inline Lanes spread(double value) { return _mm512_set1_pd(value); }
inline Lanes multiply_add(Lanes sum, Lanes a, Lanes b) { return _mm512_fmadd_pd(a, b, sum); }

#include "body.h"

}  // namespace

const Kernels avx512_kernels{filter_block, space, run};

}  // namespace prunus::dense
