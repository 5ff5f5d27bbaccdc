// Integer products in plain C++: the same integers and floats as every other instruction set.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "integer.h"

namespace prunus {
namespace kernels {
namespace {

#include "integer_plain.h"

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

void add_up(const IntegerTask &t, const uint8_t *x, int32_t (&sum)[lanes]) {
    const uint8_t *unit = t.units;
    const int32_t *place = t.place;
    for (int32_t b = 0; b < t.full; ++b, unit += full_bytes, ++place)
        for (int64_t row = 0; row < lanes; ++row)
            for (int64_t column = 0; column < table; ++column)
                sum[row] += int(x[*place + column]) *
                            int8_t(unit[column / 4 * 64 + row / 4 % 2 * 32 + row % 4 * 4 + row / 8 * 16 + column % 4]);
    const auto run = [&](int32_t units, int count) {
        for (int32_t u = 0; u < units; ++u, unit += unit_bytes, place += count) {
            const uint8_t *tables[4];
            for (int i = 0; i < count; ++i) tables[i] = x + place[i];
            uint8_t found[64];
            look_up(unit, tables, count, found);
            for (int64_t row = 0; row < lanes; ++row) {
                const int64_t at = row / 4 % 2 * 32 + row % 4 * 4 + row / 8 * 16;
                for (int slot = 0; slot < 4; ++slot) sum[row] += int(found[at + slot]) * int8_t(unit[32 + at + slot]);
            }
        }
    };
    run(t.quads, 1), run(t.pairs, 2), run(t.crossed, 4);
}

void multiply(const IntegerTask &t) { multiply_tokens_with(t, add_up); }

#include "integer_level.h"

}  // namespace

const IntegerLevel &portable_integers() {
    static constexpr IntegerLevel level = integer_level("portable");
    return level;
}

}  // namespace kernels
}  // namespace prunus
