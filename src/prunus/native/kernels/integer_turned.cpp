#include "integer_turned.h"

#include <algorithm>
#include <cstring>

namespace prunus {
namespace kernels {

void Turned::make_room(const Conv &c, int64_t bank) {
    channels = c.channels, height = c.height, width = c.width;
    pad_y = std::max(pad_y, c.pad_y + c.more_y), pad_x = std::max(pad_x, c.pad_x + c.more_x);
    pitch = std::max(pitch, (c.channels + bank - 1) / bank * bank);
}

void Turned::clear_around(uint8_t zero, uint8_t *image) const {
    for (int64_t y = 0; y < height && pitch > channels; ++y)
        for (int64_t x = 0; x < width; ++x) std::memset(image + at(y, x) + channels, zero, size_t(pitch - channels));
    if (pad_y == 0 && pad_x == 0) return;
    std::memset(image, zero, size_t(at(0, 0)));
    for (int64_t y = 0; y + 1 < height; ++y) {
        const int64_t from = at(y, width);
        std::memset(image + from, zero, size_t(at(y + 1, 0) - from));
    }
    const int64_t from = at(height - 1, width);
    std::memset(image + from, zero, size_t(size() - from));
}

void Turned::turn(const IntegerLevel &level, const uint8_t *planes, uint8_t *image) const {
    for (int64_t y = 0; y < height; ++y)
        level.turn(planes + y * width, height * width, channels, width, image + at(y, 0), pitch);
}

ColumnOf::ColumnOf(const Conv &c, int64_t bank, int64_t column) {
    const int64_t taps = c.kernel_y * c.kernel_x;
    const bool few = c.channels < bank;
    tap = few ? column / c.channels : column / bank % taps;
    channel = few ? column % c.channels : column / bank / taps * bank + column % bank;
}

OwnWeights::OwnWeights(const IntegerMatrix &matrix, const Conv &c, int64_t bank) {
    if (matrix.rows != c.channels) return;
    const int64_t taps = c.kernel_y * c.kernel_x, blocks = (c.channels + 63) / 64;
    fours = (taps + 3) / 4;
    weight.assign(size_t(blocks * fours * 256), 0);
    sum.assign(size_t(blocks * 64), 0), scale.assign(size_t(blocks * 64), 0.0f);
    bool own = true;
    matrix.each([&](int64_t row, int64_t column, int8_t value) {
        const ColumnOf from(c, bank, column);
        own = own && from.channel == row;
        if (!own) return;
        const int64_t four = row / 64 * fours + from.tap / 4;
        weight[size_t((four * 64 + place(row % 64)) * 4 + from.tap % 4)] = value;
        sum[size_t(row)] += value;
    });
    if (!own) return;
    std::copy_n(matrix.scale.begin(), matrix.rows, scale.begin());
    channels = c.channels;
}

std::vector<int64_t> OwnWeights::places(const Conv &c, const Turned &image) const {
    std::vector<int64_t> out;
    for (int64_t tap = 0; tap < 4 * fours; ++tap) out.push_back(tap < c.kernel_y * c.kernel_x ? image.tap(c, tap) : 0);
    return out;
}

}  // namespace kernels
}  // namespace prunus
