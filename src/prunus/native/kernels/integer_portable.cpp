// Integer products in plain C++: the same integers and floats as every other instruction set.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "integer.h"

namespace prunus {
namespace kernels {
namespace {

Step quantise(const float *x, int64_t count, uint8_t *out) {
    float low = 0.0f, high = 0.0f;
    uint32_t largest = 0;
    for (int64_t i = 0; i < count; ++i) {
        uint32_t bits;
        std::memcpy(&bits, x + i, 4);
        largest = std::max(largest, bits & 0x7FFFFFFFu);
        low = x[i] < low ? x[i] : low, high = x[i] > high ? x[i] : high;
    }
    const Grid grid = grid_for(low, high, largest);
    for (int64_t i = 0; i < count; ++i) {
        const int q = grid.flat ? 0 : int(std::nearbyint(x[i] * grid.inverse)) + grid.step.zero;
        out[i] = uint8_t(std::min(top, std::max(0, q)));
    }
    std::fill(out + count, out + (count + table - 1) / table * table, uint8_t(0));
    return grid.step;
}

// Four bytes of each row, as the unit's weights stand, from the tables of its banks.
void look_up(const uint8_t *unit, const uint8_t *const *tables, int count, uint8_t (&out)[64]) {
    for (int64_t row = 0; row < lanes; ++row)
        for (int slot = 0; slot < 4; ++slot) {
            const int64_t to = row % 4 * 4 + row / 8 * 16 + slot, half = row / 4 % 2;
            const uint8_t pair = count == 1 ? unit[to] : unit[row * 2 + slot % 2];
            const bool high = count == 1 ? half : slot / 2;
            out[half * 32 + to] = tables[slot * count / 4][high ? pair >> 4 : pair & 15];
        }
}

void multiply(const IntegerTask &t) {
    for (int n = 0; n < t.tokens; ++n) {
        int32_t sum[lanes] = {};
        const uint8_t *unit = t.units, *x = t.x + n * t.pitch;
        const int32_t *place = t.place;
        const auto run = [&](int32_t units, int count) {
            for (int32_t u = 0; u < units; ++u, unit += unit_bytes, place += count) {
                const uint8_t *tables[4];
                for (int i = 0; i < count; ++i) tables[i] = x + place[i];
                uint8_t found[64];
                look_up(unit, tables, count, found);
                for (int64_t row = 0; row < lanes; ++row) {
                    const int64_t at = row / 4 % 2 * 32 + row % 4 * 4 + row / 8 * 16;
                    for (int slot = 0; slot < 4; ++slot)
                        sum[row] += int(found[at + slot]) * int8_t(unit[32 + at + slot]);
                }
            }
        };
        run(t.quads, 1), run(t.pairs, 2), run(t.crossed, 4);
        for (int64_t row = 0; row < t.rows; ++row) {
            float value = float(sum[row] - t.step[n].zero * t.sum[row]) * (t.step[n].step * t.scale[row]);
            if (t.bias) value += t.bias[row];
            t.out[n * t.ldo + row] = t.relu && value < 0.0f ? 0.0f : value;
        }
    }
}

}  // namespace

const IntegerLevel &portable_integers() {
    static constexpr IntegerLevel level = {.name = "portable", .quantise = quantise, .multiply = multiply};
    return level;
}

}  // namespace kernels
}  // namespace prunus
