// Integer products in plain C++: the same integers and floats as every other instruction set.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "integer.h"

namespace prunus {
namespace kernels {
namespace {

void measure(const float *x, int64_t count, Range &range) {
    for (int64_t i = 0; i < count; ++i) {
        uint32_t bits;
        std::memcpy(&bits, x + i, 4);
        range.largest = std::max(range.largest, bits & 0x7FFFFFFFu);
        range.low = x[i] < range.low ? x[i] : range.low, range.high = x[i] > range.high ? x[i] : range.high;
    }
}

// What lies outside of the range is moved to its ends.
uint8_t to_byte(float x, const Grid &grid) {
    const float low = float(-grid.step.zero), high = float(top - grid.step.zero), scaled = x * grid.inverse;
    const float inside = scaled > low ? (scaled < high ? scaled : high) : low;
    return grid.flat ? uint8_t(0) : uint8_t(int(std::nearbyint(inside)) + grid.step.zero);
}

bool to_bytes(const float *x, int64_t count, const Grid &grid, uint8_t *out) {
    bool finite = true;
    for (int64_t i = 0; i < count; ++i) finite &= std::isfinite(x[i]), out[i] = to_byte(x[i], grid);
    return finite;
}

bool planes_to_bytes(const float *x, int64_t plane, int64_t channels, int64_t count, const Grid &grid, uint8_t *out,
                     int64_t pitch) {
    bool finite = true;
    for (int64_t i = 0; i < count; ++i, out += pitch) {
        for (int64_t c = 0; c < channels; ++c)
            finite &= std::isfinite(x[c * plane + i]), out[c] = to_byte(x[c * plane + i], grid);
        std::fill(out + channels, out + std::max(channels, pitch), uint8_t(0));
    }
    return finite;
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

void token(const IntegerTask &t, const uint8_t *x, const Step &step, float *out, const float *other, uint8_t *bytes) {
    int32_t sum[lanes] = {};
    const uint8_t *unit = t.units;
    const int32_t *place = t.place;
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
    for (int64_t row = 0; row < t.rows; ++row) {
        float value = float(sum[row] - step.zero * t.sum[row]) * (step.step * t.scale[row]);
        value += t.bias ? t.bias[row] : 0.0f;
        if (other) value += other[row];
        value = t.relu && value < 0.0f ? 0.0f : value;
        if (out) out[row] = value;
        if (bytes) bytes[row] = to_byte(value, *t.grid);
        if (bytes && !std::isfinite(value)) *t.wild = true;
    }
    for (int64_t row = t.rows; bytes && row < lanes; ++row) bytes[row] = 0;
}

void multiply(const IntegerTask &t) {
    for (int64_t i = 0; i < t.lines; ++i)
        for (int n = 0; n < t.tokens; ++n)
            token(t, t.x + i * t.line + n * t.pitch, t.step[t.one_step ? 0 : n],
                  t.out ? t.out + i * t.out_line + n * t.out_token : nullptr,
                  t.other ? t.other + i * t.other_line + n * t.other_token : nullptr,
                  t.bytes ? t.bytes + i * t.bytes_line + n * t.bytes_token : nullptr);
}

}  // namespace

const IntegerLevel &portable_integers() {
    static constexpr IntegerLevel level = {.name = "portable",
                                           .measure = measure,
                                           .to_bytes = to_bytes,
                                           .planes_to_bytes = planes_to_bytes,
                                           .multiply = multiply};
    return level;
}

}  // namespace kernels
}  // namespace prunus
