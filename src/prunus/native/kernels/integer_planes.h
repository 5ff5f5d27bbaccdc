// Convolutions with integer products: images as planes of bytes, neighbouring pixels in the lanes.
//
// For each step to the right that a tap takes, the planes are copied once, moved by that step, cut to the width of the
// output and with the byte for zero where the image ends. So a (channel, tap) is one run of bytes, in which the inputs of
// neighbouring output pixels are neighbours, across the ends of rows too: any 32 pixels (or 64) are one register, and
// results leave as they stand in a plane. The bytes of two weights are interleaved and multiplied into 16 bits; four
// weights of a row are chosen such that their sum fits there too, whatever the inputs are, and eight are widened into 32
// bits together. That is 8 operations for 64 products, of any mask. With VNNI four weights, whatever they are, take 12
// operations for 128 products, or for 256 in registers of 512 bits. Channels go in blocks whose inputs stay in the
// first-level cache.
#pragma once

#include <cstdint>
#include <vector>

#include "integer.h"
#include "run.h"

namespace prunus {
namespace kernels {

constexpr int most_in_four = 258;  // of the positive weights of four, and of the negative ones: 127 * 258 fits 16 bits

// How the copies of one channel's plane lie: [step to the right][phase of the rows][row][column]. Large images go in
// strips of rows whose copies stay in the second-level cache.
struct Shifts {
    int64_t height, width;  // of the output
    int64_t strip;          // rows of the output at a time
    int64_t phases, rows;   // phases of the stride that some tap reads, and rows of each in a strip
    int64_t below;          // of these below the last row of a strip
    int64_t plane;          // bytes of a channel
    bool copied;            // otherwise the image serves as it is
    bool moved;             // with a stride of one and the width of the image a copy is the plane moved by some bytes,
    std::vector<uint8_t> inside;           // except where this is zero; with a stride of two: of one row for each step
    Shifts(const Conv &, int64_t pixels);  // so many at once
    int64_t place(const Conv &, int64_t tap) const;  // of a tap's first input in a channel's copies
    // Bytes before and behind an image that `copy` may read.
    static int64_t around(const Conv &c) {
        return (c.pad_y + c.dilation_y * c.kernel_y) * c.width + c.pad_x + c.dilation_x * c.kernel_x + 64;
    }
    // The copies of the channels [first, last) of an image of bytes, for the strip that begins at the row `top`.
    void copy(const IntegerLevel &, const Conv &, const uint8_t *image, int64_t top, int64_t first, int64_t last,
              uint8_t zero, uint8_t *out) const;

  private:
    void copy_rows(const IntegerLevel &, const Conv &, const uint8_t *plane, int64_t top, uint8_t zero,
                   uint8_t *out) const;
};

// One convolution's weights by blocks of channels, then by row, in eights.
struct PlaneRows {
    Shifts shifts;
    int64_t rows, blocks, step;  // channels of a block
    std::vector<Octet> octets;
    std::vector<int64_t> start;  // [blocks * rows]: where its octets begin
    std::vector<int32_t> quads;  // [blocks * rows]: how many fours; of an odd number the last octet holds one
    std::vector<int32_t> sum;    // of each row's weights
    PlaneRows(const IntegerLevel &, const IntegerMatrix &, const Conv &, int64_t bank);
};

}  // namespace kernels
}  // namespace prunus
