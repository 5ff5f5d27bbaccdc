// A transformer's block between its products, for aarch64: two registers stand for eight floats.
#include <arm_neon.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "block.h"

namespace prunus {
namespace kernels {
namespace {

typedef float vec __attribute__((vector_size(32)));
struct Pair {
    float32x4_t low, high;
};
inline Pair halves(vec v) { return __builtin_bit_cast(Pair, v); }
inline vec whole(float32x4_t low, float32x4_t high) { return __builtin_bit_cast(vec, Pair{low, high}); }
inline vec multiply_add(vec a, vec b, vec c) {
    const Pair x = halves(a), y = halves(b), z = halves(c);
    return whole(vfmaq_f32(z.low, x.low, y.low), vfmaq_f32(z.high, x.high, y.high));
}
inline vec larger(vec a, vec b) { return a > b ? a : b; }
inline vec smaller(vec a, vec b) { return a < b ? a : b; }

#include "block_body.h"

}  // namespace

const BlockLevel &neon_blocks() { return block_level; }

}  // namespace kernels
}  // namespace prunus
