#include "integer_planes.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace prunus {
namespace kernels {
namespace {

constexpr int64_t inputs_at_hand = 22 << 10;   // bytes that pixels read in one block of channels
constexpr int64_t copies_at_hand = 384 << 10;  // bytes of a strip's copies
constexpr size_t open_fours = 16;              // that are looked through for room

struct Weight {
    uint32_t at;
    int8_t value;
};

// Four weights, or fewer: what more there is room for.
struct Four {
    Weight weight[4] = {};
    int count = 0, positive = 0, negative = 0;
    bool takes(int value) const {
        return count < 4 && positive + std::max(value, 0) <= most_in_four &&
               negative - std::min(value, 0) <= most_in_four;
    }
    void take(const Weight &w) {
        weight[count++] = w;
        (w.value > 0 ? positive : negative) += std::abs(int(w.value));
    }
};

// The large ones first, each where it fits: few fours stay with room that nothing fits into.
std::vector<Four> in_fours(std::vector<Weight> &weights) {
    std::stable_sort(weights.begin(), weights.end(),
                     [](const Weight &a, const Weight &b) { return std::abs(int(a.value)) > std::abs(int(b.value)); });
    std::vector<Four> fours;
    std::vector<size_t> open;
    for (const Weight &w : weights) {
        size_t i = 0;
        while (i < open.size() && !fours[open[i]].takes(w.value)) ++i;
        if (i == open.size()) {
            if (open.size() == open_fours) open.erase(open.begin());
            i = open.size();
            open.push_back(fours.size());
            fours.emplace_back();
        }
        Four &four = fours[open[i]];
        four.take(w);
        if (four.count == 4) open.erase(open.begin() + int64_t(i));
    }
    return fours;
}

// As they come, each four of whatever size.
std::vector<Four> plain_fours(const std::vector<Weight> &weights) {
    std::vector<Four> fours((weights.size() + 3) / 4);
    for (size_t i = 0; i < weights.size(); ++i) fours[i / 4].weight[i % 4] = weights[i];
    return fours;
}

// The first half of an octet, or the second; `together`: four weights side by side.
void write(const Four &four, int half, bool together, Octet &out) {
    for (int i = 0; i < 4; ++i) {
        const int number = 4 * half + i;
        out.at[number] = four.weight[i].at;
        if (together) {
            out.weight[number] = four.weight[i].value;
            continue;
        }
        int8_t *pair = out.weight + number / 2 * 4 + number % 2;  // each two weights stand twice
        pair[0] = pair[2] = four.weight[i].value;
    }
}

}  // namespace

Shifts::Shifts(const Conv &c, int64_t pixels) : height(c.out_height()), width(c.out_width()) {
    const int64_t reach = c.dilation_y * (c.kernel_y - 1);
    phases = std::min(c.stride_y, reach + 1), below = reach / c.stride_y;
    copied = c.kernel_y * c.kernel_x > 1 || c.stride_y > 1 || c.stride_x > 1 || c.pad_y > 0 || c.pad_x > 0;
    const int64_t row = c.channels * c.kernel_x * phases * width;  // bytes of a row's copies
    int64_t whole = 1;                                             // rows that are whole registers
    while (whole < pixels && whole * width % pixels) ++whole;
    strip = copied ? std::max<int64_t>(whole, (copies_at_hand / row - below) / whole * whole) : height;
    strip = std::min(strip, height), rows = strip + below, plane = c.kernel_x * phases * rows * width;
    if (plane > std::numeric_limits<uint32_t>::max() / 4) throw std::invalid_argument("an image is too large");
    moved = copied && c.stride_y == 1 && c.stride_x == 1 && width == c.width;
    const auto within = [](int64_t i, int64_t size) { return i >= 0 && i < size; };
    for (int64_t x = 0; x < c.kernel_x && c.stride_x == 2; ++x)
        for (int64_t i = 0; i < width; ++i)
            inside.push_back(within(2 * i + x * c.dilation_x - c.pad_x, c.width) ? 255 : 0);
    for (int64_t x = 0; x < c.kernel_x && moved; ++x)
        for (int64_t i = 0; i < (height + below) * width; ++i) {
            const bool here =
                within(i / width - c.pad_y, c.height) && within(i % width + x * c.dilation_x - c.pad_x, c.width);
            inside.push_back(here ? 255 : 0);
        }
}

int64_t Shifts::place(const Conv &c, int64_t tap) const {
    const int64_t y = tap / c.kernel_x * c.dilation_y, x = tap % c.kernel_x;
    return ((x * phases + y % c.stride_y) * rows + y / c.stride_y) * width;
}

// One channel, row by row.
void Shifts::copy_rows(const IntegerLevel &level, const Conv &c, const uint8_t *from, int64_t top, uint8_t zero,
                       uint8_t *to) const {
    for (int64_t x = 0; x < c.kernel_x; ++x) {
        const int64_t move = x * c.dilation_x - c.pad_x, left = std::max<int64_t>(0, -move);
        const int64_t begin = std::min(width, (left + c.stride_x - 1) / c.stride_x);
        const int64_t end = std::max(begin, std::min(width, Conv::steps(c.width - move, c.stride_x)));
        for (int64_t phase = 0; phase < phases; ++phase)
            for (int64_t row = 0; row < rows; ++row, to += width) {
                const int64_t y = (top + row) * c.stride_y + phase - c.pad_y;
                const uint8_t *line = from + y * c.width + move;
                if (y < 0 || y >= c.height) {
                    std::memset(to, zero, size_t(width));
                    continue;
                }
                if (c.stride_x == 2) {
                    level.choose_second(line, inside.data() + x * width, width, zero, to);
                    continue;
                }
                std::memset(to, zero, size_t(begin));
                for (int64_t j = begin; j < end; ++j) to[j] = line[c.stride_x * j];
                std::memset(to + end, zero, size_t(width - end));
            }
    }
}

void Shifts::copy(const IntegerLevel &level, const Conv &c, const uint8_t *image, int64_t top, int64_t first,
                  int64_t last, uint8_t zero, uint8_t *out) const {
    const int64_t count = std::min(rows, height + below - top) * width;  // of the last strip there may be less
    for (int64_t k = first; k < last; ++k) {
        const uint8_t *from = image + k * c.height * c.width;
        uint8_t *to = out + k * plane;
        if (!moved) copy_rows(level, c, from, top, zero, to);
        for (int64_t x = 0; x < c.kernel_x && moved; ++x)
            level.choose(from + x * c.dilation_x - c.pad_x + (top - c.pad_y) * width,
                         inside.data() + (x * (height + below) + top) * width, count, zero, to + x * rows * width);
    }
}

PlaneRows::PlaneRows(const IntegerLevel &level, const IntegerMatrix &matrix, const Conv &c, int64_t bank)
    : shifts(c, level.pixels), rows(matrix.rows) {
    const int64_t taps = c.kernel_y * c.kernel_x, across = c.kernel_x * shifts.phases;
    const int64_t span = level.pixels + shifts.below * shifts.width + 32;  // and parts of lines
    const int64_t read = std::min(shifts.plane, across * span);
    blocks = std::max<int64_t>(1, (c.channels * read + inputs_at_hand - 1) / inputs_at_hand);
    // Offsets in a block have 32 bits.
    blocks = std::max(blocks, c.channels * shifts.plane / (int64_t(std::numeric_limits<uint32_t>::max()) / 2) + 1);
    blocks = std::min(blocks, c.channels);
    step = (c.channels + blocks - 1) / blocks, blocks = (c.channels + step - 1) / step;
    std::vector<std::vector<Weight>> weights(static_cast<size_t>(blocks * rows));
    sum.assign(size_t(rows), 0);
    matrix.each([&](int64_t row, int64_t column, int8_t value) {
        const bool few = c.channels < bank;
        const int64_t tap = few ? column / c.channels : column / bank % taps;
        const int64_t channel = few ? column % c.channels : column / bank / taps * bank + column % bank;
        if (channel >= c.channels) return;  // fills up the last bank, and meets zeros
        sum[size_t(row)] += value;
        const int64_t at = channel % step * shifts.plane + shifts.place(c, tap);
        weights[size_t(channel / step * rows + row)].push_back({uint32_t(at), value});
    });
    for (std::vector<Weight> &some : weights) {
        const std::vector<Four> fours = level.fours ? plain_fours(some) : in_fours(some);
        start.push_back(int64_t(octets.size()));
        quads.push_back(int32_t(fours.size()));
        for (size_t i = 0; i < fours.size(); ++i) {
            if (i % 2 == 0) octets.emplace_back();
            write(fours[i], int(i % 2), level.fours, octets.back());
        }
    }
}

}  // namespace kernels
}  // namespace prunus
