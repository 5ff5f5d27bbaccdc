// Kernels for processors with AVX2 and FMA.
#include <immintrin.h>

#include "format.h"

namespace prunus {
namespace kernels {
namespace {

using vec = __m256;
constexpr int W = 8;
constexpr int max_vectors = 3;  // with four rows, as many sums as there are registers for
inline vec load(const float *p) { return _mm256_loadu_ps(p); }
inline void store(float *p, vec v) { _mm256_storeu_ps(p, v); }
inline vec fma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
inline vec add(vec a, vec b) { return _mm256_add_ps(a, b); }
inline vec all(float v) { return _mm256_set1_ps(v); }
inline vec positive(vec v) { return _mm256_max_ps(_mm256_setzero_ps(), v); }  // in this order it keeps NaN
inline vec at_most(vec cap, vec v) { return _mm256_min_ps(cap, v); }          // likewise

// The lanes [first, last) of a register, and a load that touches no others: they are zero.
using some = __m256i;
inline some lanes_between(int64_t first, int64_t last) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i from = _mm256_set1_epi32(int(first < 0 ? 0 : first > W ? W : first));
    const __m256i to = _mm256_set1_epi32(int(last < 0 ? 0 : last > W ? W : last));
    return _mm256_andnot_si256(_mm256_cmpgt_epi32(from, lane), _mm256_cmpgt_epi32(to, lane));
}
inline vec load_some(const float *p, some lanes) { return _mm256_maskload_ps(p, lanes); }

// Lanes 0, 2, 4 ... of a register and of the one that follows it.
inline vec every_second(vec a, vec b) {
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88)), 0xD8));
}

// Each of R neighbouring values in all lanes of its own register: one load for four of them, then in-lane moves.
template <int R>
inline void splat_rows(const float *p, vec *out) {
#pragma GCC unroll 2
    for (int i = 0; i < R; i += 4) {
        const vec four = _mm256_broadcast_ps(reinterpret_cast<const __m128 *>(p + i));
        out[i] = _mm256_permute_ps(four, 0x00), out[i + 1] = _mm256_permute_ps(four, 0x55);
        out[i + 2] = _mm256_permute_ps(four, 0xAA), out[i + 3] = _mm256_permute_ps(four, 0xFF);
    }
}

#include "place_avx2.h"
#include "tile.h"
#include "transpose8_avx2.h"
#include "transpose.h"
#include "permute_avx2.h"
#include "level.h"

}  // namespace

const Level &avx2_level() {
    static constexpr Level level =
        level_of("avx2", {.up_to = 3, .bank = 64, .table_bytes = 128, .prepare = prepare_tables, .ready = true});
    return level;
}

}  // namespace kernels
}  // namespace prunus
