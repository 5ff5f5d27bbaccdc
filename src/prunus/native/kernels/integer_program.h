// Convolutions with integer products, and runs of them. A value is planes or lies turned, the channels of each pixel side
// by side; of floats, of bytes, or both.
//
// A convolution reads bytes and writes floats, or bytes where one other reads them over a range that is known
// beforehand; otherwise the floats' range over the image is measured first. What is added to a later sum, or leaves the
// run, is kept in floats, so a run gives the same bits as its layers called one by one. Pixels are in the lanes
// (integer_planes.h), or are to the kernel of linear layers what tokens are (integer_turned.h).
#pragma once

#include <memory>
#include <vector>

#include "conv.h"
#include "integer_planes.h"
#include "integer_turned.h"
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
              float cap, const Grid *fixed, int in, int other);
    // The same with products of floats; the memory that the layer lies in must outlive the program.
    void float_conv(const Packed &, const Conv &c, const Finish &, int in, int other);
    void thin(int64_t step_y, int64_t step_x, int64_t before, int64_t after, int in);
    void max_pool(int64_t kernel_y, int64_t kernel_x, int64_t stride_y, int64_t stride_x, int in);
    // The values to be returned; nothing is added after this.
    void finish(const std::vector<int> &results);

    // Channels, height and width of a value.
    void shape(int value, int64_t (&out)[3]) const;

    // Tensors: the inputs, then the results; (batch, channels, height, width) each.
    void run(int64_t batch, const std::vector<float *> &tensors, int threads) const;

  private:
    enum class Kind { input, conv, float_conv, thin, max_pool };
    enum class Way { planes, tokens, own };
    // A value as bytes.
    struct Bytes {
        int value;
        bool measured;  // over each image
        Grid grid;
        bool turned;
        Turned form;  // then
        int64_t at;   // in memory
    };
    // A value as floats, between steps.
    struct Floats {
        bool kept = false;
        int64_t at = 0;  // in memory
    };
    struct Value {
        Kind kind;
        int64_t channels, height, width;
        int in, other;
        int64_t numbers[4];
        int last;             // step that reads it last
        int tensor;           // where it leaves or enters the run; -1
        bool turned = false;  // as its own step makes it
        Floats planes = {}, tokens = {};
        std::vector<int> bytes = {};  // ways in which it is read
        int direct = -1;              // the one its own step writes, or -1
        int64_t pixels() const { return height * width; }
        int64_t count() const { return channels * pixels(); }
    };
    struct Layer {
        std::shared_ptr<const IntegerMatrix> matrix;
        Conv c;
        int64_t bank;
        const float *bias;
        bool relu;
        float cap;
        bool fixed;
        Grid grid;  // then
        Way way;
        int bytes;                              // what it reads
        std::shared_ptr<const PlaneRows> rows;  // of planes
        std::shared_ptr<const OwnWeights> own;  // of rows that each read their own channel
        std::vector<int32_t> place;             // of tokens: where banks lie
        std::vector<int64_t> taps;              // of own channels
    };
    struct Image;  // what is known of the image at hand

    const Level &level_;
    const IntegerLevel &integers_;
    bool turned_;  // wherever that is possible
    std::vector<Value> values_;
    std::vector<Layer> layers_;                   // of each value; empty for what is no convolution
    std::vector<std::unique_ptr<ConvJob>> jobs_;  // of each value; null for what is no convolution of floats
    std::vector<Bytes> bytes_;
    std::vector<int64_t> sizes_;  // floats of an image of each tensor
    int64_t memory_ = 0, work_ = 0;
    int64_t spare_ = 64;  // bytes before and behind each piece of memory that may be read, or written behind

    const Layer &layer(int value) const { return layers_[size_t(value)]; }
    void add(Kind, int64_t channels, int64_t height, int64_t width, int in, int other);
    void require_same(int other, const Value &to) const;
    void choose_way(Layer &);
    void find_bytes(int value);
    void find_floats();
    void lay_out();
    void image(int64_t n, const std::vector<float *> &tensors, int threads) const;
    void convolve(Image &, int value, int threads) const;
    bool by_planes(Image &, int value, int threads) const;
    PlaneTask plane_task(const Image &, int value, int64_t row, int64_t first) const;
    bool by_tokens(Image &, int value, int threads) const;
    TokenEnd token_end(const Image &, int value, int64_t row, int64_t first, int64_t lines) const;
    void step_of_floats(Image &, int value) const;
    void turn_floats(Image &, int value) const;
    void make_bytes(Image &, int value, int which) const;
};

}  // namespace kernels
}  // namespace prunus
