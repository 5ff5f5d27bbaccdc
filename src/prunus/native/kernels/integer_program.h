// Convolutions with integer products, and runs of them: images as bytes, a pixel's channels side by side.
//
// So a (tap, bank of 16 channels) of a pixel is sixteen bytes at a fixed distance, which is the table that the integer
// kernel looks up: a row of pixels is to it what a few tokens of a linear layer are. The zeros around an image are the
// byte that stands for zero. A layer writes its results as the bytes that the next one reads where their range is known
// beforehand; otherwise as floats first, whose range over the image is then measured. What is added to a later sum, or
// leaves the run, is kept in floats, so a run gives the same bits as its layers called one by one.
#pragma once

#include <memory>
#include <vector>

#include "integer.h"
#include "run.h"

namespace prunus {
namespace kernels {

class IntegerProgram {
  public:
    IntegerProgram(const Level &, const IntegerLevel &);
    IntegerProgram(const IntegerProgram &) = delete;
    IntegerProgram &operator=(const IntegerProgram &) = delete;

    // Each call adds one value, an image; values are numbered in this order. Inputs come first.
    void input(int64_t channels, int64_t height, int64_t width);
    // `other` is the number of a value, or -1; `fixed` null: the range is that of each image. `bank` is that of the packed
    // layout, whose columns stand as `conv` in run.h has them. Layout fields of `c` are not read.
    void conv(std::shared_ptr<const IntegerMatrix>, int64_t bank, const Conv &c, const float *bias, bool relu,
              const Grid *fixed, int in, int other);
    void thin(int64_t step_y, int64_t step_x, int64_t before, int64_t after, int in);
    void max_pool(int64_t kernel_y, int64_t kernel_x, int64_t stride_y, int64_t stride_x, int in);
    // The values to be returned; nothing is added after this.
    void finish(const std::vector<int> &results);

    // Channels, height and width of a value.
    void shape(int value, int64_t (&out)[3]) const;

    // Tensors: the inputs, then the results; (batch, channels, height, width) each.
    void run(int64_t batch, const std::vector<float *> &tensors, int threads) const;

  private:
    enum class Kind { input, conv, thin, max_pool };
    // A value as bytes: `halo` pixels around it, `pitch` bytes for a pixel.
    struct Bytes {
        int value;
        bool measured;  // over each image
        bool tight;     // pixels without anything between them
        Grid grid;
        int64_t pitch, halo_y, halo_x;
        int64_t at = 0;  // in memory
        int64_t line = 0, size = 0;
    };
    struct Value {
        Kind kind;
        int64_t channels, height, width;
        int in, other;
        int64_t numbers[4];
        int last;     // step that reads it last
        int tensor;   // where it leaves or enters the run; -1
        bool floats;  // kept so, at:
        int64_t at;
        std::vector<int> bytes;  // ways in which it is read
        int direct;              // the one its own step writes, or -1
    };
    struct Layer {
        std::shared_ptr<const IntegerMatrix> matrix;
        Conv c;
        int64_t bank;
        const float *bias;
        bool relu, gathered;  // taps copied side by side, where a bank is wider than all channels
        int bytes;            // what it reads
        std::vector<int32_t> place;
        int64_t token;  // bytes of a pixel's inputs, where they are gathered
    };
    struct Image;  // what is known of the image at hand

    const Level &level_;
    const IntegerLevel &integers_;
    std::vector<Value> values_;
    std::vector<Layer> layers_;  // of each value; empty for what is no convolution
    std::vector<Bytes> bytes_;
    std::vector<int64_t> sizes_;  // floats of an image of each tensor
    int64_t memory_ = 0, work_ = 0;

    void add(Kind, int64_t channels, int64_t height, int64_t width, int in, int other);
    int64_t count(int value) const;
    void lay_out();
    void image(int64_t n, const std::vector<float *> &tensors, int threads) const;
    void convolve(Image &, int value, int threads) const;
    void lines(Image &, int value, int64_t first, int64_t last, bool &wild) const;
    void gather(const Layer &, const Bytes &, const uint8_t *from, int64_t first, int64_t last, uint8_t *out) const;
    void make_bytes(Image &, int value, int which) const;
    void around(const Bytes &, uint8_t zero, uint8_t *at) const;
};

}  // namespace kernels
}  // namespace prunus
