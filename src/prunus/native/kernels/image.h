// Images in memory, with or without zeros around them.
#pragma once

#include <algorithm>

#include "run.h"

namespace prunus {
namespace kernels {

// Floats of one plane of height x width pixels.
inline int64_t plane_size(const Layout &l, int64_t height, int64_t width) { return l.plane ? l.plane : height * width; }

// Where the pixel (row, column) lies in its plane.
inline int64_t pixel(const Layout &l, int64_t width, int64_t row, int64_t column) {
    return l.plane ? (row + l.pad) * l.pitch + l.pad + column : row * width + column;
}

// Write the zeros around `planes` planes of height x width pixels.
inline void clear_border(const Layout &l, int64_t planes, int64_t height, int64_t width, float *y) {
    if (!l.plane) return;
    for (int64_t k = 0; k < planes; ++k, y += l.plane) {
        std::fill(y, y + pixel(l, width, 0, 0), 0.0f);
        for (int64_t row = 0; row + 1 < height; ++row)
            for (int64_t i = pixel(l, width, row, width); i < pixel(l, width, row + 1, 0); ++i) y[i] = 0.0f;
        std::fill(y + pixel(l, width, height - 1, width), y + l.plane, 0.0f);
    }
}

}  // namespace kernels
}  // namespace prunus
