// A run of layers executed by one call: convolutions and what stands between them, image by image, so that everything
// that passes between layers stays in the cache and no layer waits for another image's turn.
#pragma once

#include <memory>
#include <vector>

#include "conv.h"

namespace prunus {
namespace kernels {

// Where an image lies: `offset` floats into the memory between layers (base < 0), or in a tensor handed to `run`.
struct Place {
    int base;
    int64_t offset;
    Layout layout;
};

// Sizes of one image.
struct Size {
    int64_t channels, height, width;
};

class Program {
  public:
    // `memory`: floats that pass between layers, for one image. `sizes`: floats of one image of each tensor.
    Program(const Level &level, int64_t memory, std::vector<int64_t> sizes);
    Program(const Program &) = delete;
    Program &operator=(const Program &) = delete;

    void conv(const Packed &, const Conv &, const Finish &, Place in, Place out, const Place *other);
    // Every `step`-th pixel in both directions, with `before` and `after` channels of zeros around the channels.
    void thin(Size, int64_t step_y, int64_t step_x, int64_t before, int64_t after, Place in, Place out);
    // The largest of each kernel_y x kernel_x pixels, `stride` apart, nothing around the image.
    void max_pool(Size, int64_t kernel_y, int64_t kernel_x, int64_t stride_y, int64_t stride_x, Place in, Place out);

    // All steps for `batch` images; `tensors` are the addresses of what `sizes` describes.
    void run(int64_t batch, const std::vector<float *> &tensors, int threads) const;

  private:
    enum class Kind { conv, thin, max_pool };
    struct Step {
        Kind kind;
        Place in, out, other;
        bool adds;
        Size size;
        int64_t numbers[4];
        std::unique_ptr<ConvJob> job;
    };

    const Level &level_;
    const int64_t memory_;
    const std::vector<int64_t> sizes_;
    std::vector<Step> steps_;
    int64_t work_ = 0;

    void image(int64_t n, const std::vector<float *> &tensors, int threads) const;
};

}  // namespace kernels
}  // namespace prunus
