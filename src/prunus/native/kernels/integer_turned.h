// Convolutions over images of bytes whose pixels hold their channels side by side: to the kernel of linear layers a pixel
// is what a token is. Zeros lie around an image, so that every tap of every pixel is read as it stands.
#pragma once

#include <cstdint>
#include <vector>

#include "integer.h"
#include "run.h"

namespace prunus {
namespace kernels {

// How the bytes of an image lie.
struct Turned {
    int64_t channels = 0, height = 0, width = 0;
    int64_t pad_y = 0, pad_x = 0;  // zeros on each side
    int64_t pitch = 0;             // bytes from pixel to pixel
    int64_t line() const { return (width + 2 * pad_x) * pitch; }
    int64_t size() const { return (height + 2 * pad_y) * line(); }
    int64_t at(int64_t y, int64_t x) const { return (y + pad_y) * line() + (x + pad_x) * pitch; }
    // Room for what this convolution reads, in banks of so many channels.
    void make_room(const Conv &c, int64_t bank);
    // Where it reads its first tap for its first pixel.
    int64_t first(const Conv &c) const { return at(-c.pad_y, -c.pad_x); }
    int64_t tap(const Conv &c, int64_t number) const {
        return number / c.kernel_x * c.dilation_y * line() + number % c.kernel_x * c.dilation_x * pitch;
    }
    void clear_around(uint8_t zero, uint8_t *image) const;  // and what fills up the last bank
    // From planes of bytes.
    void turn(const IntegerLevel &, const uint8_t *planes, uint8_t *image) const;
};

// Where a column of a convolution's matrix reads.
struct ColumnOf {
    int64_t tap, channel;
    ColumnOf(const Conv &c, int64_t bank, int64_t column);
};

// The weights of a convolution whose rows each read one channel, their own, in blocks of 64 channels and fours of taps:
// a block's weights for four taps stand as registers want them that hold interleaved channels (0-3, 16-19, 32-35 and
// 48-51, then 4-7 and so on), four to a channel.
struct OwnWeights {
    int64_t channels = 0, fours = 0;
    std::vector<int8_t> weight;
    std::vector<int32_t> sum;  // of each channel's weights
    std::vector<float> scale;
    // No channels where a row reads another one.
    OwnWeights(const IntegerMatrix &, const Conv &, int64_t bank);
    std::vector<int64_t> places(const Conv &, const Turned &) const;  // of each tap, in whole fours
    static int64_t place(int64_t channel) { return channel % 16 / 4 * 16 + channel / 16 * 4 + channel % 4; }
};

}  // namespace kernels
}  // namespace prunus
