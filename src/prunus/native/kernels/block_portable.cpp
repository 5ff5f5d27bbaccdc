// A transformer's block between its products, in plain C++.
#include <algorithm>
#include <cmath>
#include <limits>

#include "block.h"

namespace prunus {
namespace kernels {
namespace {

typedef float vec __attribute__((vector_size(32)));
inline vec multiply_add(vec a, vec b, vec c) { return a * b + c; }
inline vec larger(vec a, vec b) { return a > b ? a : b; }
inline vec smaller(vec a, vec b) { return a < b ? a : b; }

#include "block_body.h"

}  // namespace

const BlockLevel &portable_blocks() { return block_level; }

}  // namespace kernels
}  // namespace prunus
