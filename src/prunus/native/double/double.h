// Dense convolution in double precision, for certificates: torch has no fast one, and single precision is not enough.
#pragma once

#include <cstdint>

#include "dispatch.h"

namespace prunus::dense {

// One group of a 2-D convolution over an image of `channels` x `height` x `width`.
struct Shape {
    std::int64_t channels, height, width;
    std::int64_t filters, kernel_y, kernel_x;
    std::int64_t stride_y, stride_x, pad_y, pad_x, dilation_y, dilation_x;
    std::int64_t out_y, out_x;
};

struct Kernels {
    // Filters computed side by side; packed weights come in blocks of so many.
    int block;
    // Doubles of work space for one image.
    std::int64_t (*space)(const Shape &shape);
    // y (filters, out_y, out_x) of one image x; `packed` is (blocks, channels, kernel_y, kernel_x, block).
    void (*run)(const double *x, const double *packed, double *y, const Shape &shape, double *space);
};

extern const Kernels portable_kernels;
#ifdef PRUNUS_X86
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;
#endif

}  // namespace prunus::dense
