// Plain loops; the compiler's own vectors.
#include "double.h"

namespace prunus::dense {
namespace {

constexpr int lane_count = 2, filter_block = 4;
struct Lanes {
    double value[lane_count];
};
inline Lanes load(const double *from) { return {{from[0], from[1]}}; }
inline void store(double *to, Lanes lanes) {
    to[0] = lanes.value[0];
    to[1] = lanes.value[1];
}
inline Lanes spread(double value) { return {{value, value}}; }
inline Lanes multiply_add(Lanes sum, Lanes a, Lanes b) {
    return {{sum.value[0] + a.value[0] * b.value[0], sum.value[1] + a.value[1] * b.value[1]}};
}

#include "body.h"

}  // namespace

const Kernels portable_kernels{filter_block, space, run};

}  // namespace prunus::dense
