// Images in memory, with or without zeros around them.
#pragma once

#include <algorithm>

#include "pool.h"
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

// A block of planes: where it begins, how it lies, and its sizes.
struct Planes {
    float *at;
    Layout layout;
    int64_t height, width;

    float *row(int64_t channel, int64_t y) const {
        return at + channel * plane_size(layout, height, width) + pixel(layout, width, y, 0);
    }
    void clear(int64_t channel) const {
        for (int64_t y = 0; y < height; ++y) std::fill(row(channel, y), row(channel, y) + width, 0.0f);
    }
};

// Every step-th pixel, with channels of zeros before and after.
inline void thin_image(const Planes &from, int64_t channels, const int64_t *numbers, const Planes &to) {
    const int64_t step_y = numbers[0], step_x = numbers[1], before = numbers[2], after = numbers[3];
    for (int64_t k = 0; k < before; ++k) to.clear(k);
    for (int64_t k = 0; k < channels; ++k)
        for (int64_t y = 0; y < to.height; ++y) {
            const float *in = from.row(k, y * step_y);
            float *out = to.row(before + k, y);
            for (int64_t x = 0; x < to.width; ++x) out[x] = in[x * step_x];
        }
    for (int64_t k = before + channels; k < before + channels + after; ++k) to.clear(k);
}

inline float larger(float a, float b) { return b > a || b != b ? b : a; }  // keeps NaN, as torch does

// The largest of each kernel_y x kernel_x pixels.
inline void max_pool_image(const Planes &from, int64_t channels, const int64_t *numbers, const Planes &to) {
    const int64_t kernel_y = numbers[0], kernel_x = numbers[1], stride_y = numbers[2], stride_x = numbers[3];
    float *best = static_cast<float *>(scratch(Scratch::runs, from.width * int64_t(sizeof(float))));
    for (int64_t k = 0; k < channels; ++k)
        for (int64_t y = 0; y < to.height; ++y) {
            std::copy(from.row(k, y * stride_y), from.row(k, y * stride_y) + from.width, best);
            for (int64_t i = 1; i < kernel_y; ++i) {
                const float *in = from.row(k, y * stride_y + i);
                for (int64_t x = 0; x < from.width; ++x) best[x] = larger(best[x], in[x]);
            }
            float *out = to.row(k, y);
            for (int64_t x = 0; x < to.width; ++x) {
                float value = best[x * stride_x];
                for (int64_t j = 1; j < kernel_x; ++j) value = larger(value, best[x * stride_x + j]);
                out[x] = value;
            }
        }
}

}  // namespace kernels
}  // namespace prunus
