// Integer products for aarch64: tables of sixteen bytes through `tbl`, bytes multiplied into 16 bits, pairs added into
// 32: the same integers and floats as every other instruction set.
#include <arm_neon.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "integer.h"

namespace prunus {
namespace kernels {
namespace {

Step quantise(const float *x, int64_t count, uint8_t *out) {
    float32x4_t low = vdupq_n_f32(0.0f), high = low;
    uint32x4_t largest = vdupq_n_u32(0);
    const uint32x4_t magnitude = vdupq_n_u32(0x7FFFFFFFu);
    const auto four = [&](int64_t i) {
        if (i + 4 <= count) return vld1q_f32(x + i);
        float v[4] = {};
        std::copy(x + i, x + count, v);
        return vld1q_f32(v);
    };
    for (int64_t i = 0; i < count; i += 4) {
        const float32x4_t v = four(i);
        largest = vmaxq_u32(largest, vandq_u32(vreinterpretq_u32_f32(v), magnitude));
        low = vminnmq_f32(low, v), high = vmaxnmq_f32(high, v);
    }
    const Grid grid = grid_for(vminvq_f32(low), vmaxvq_f32(high), vmaxvq_u32(largest));
    const int64_t whole = (count + table - 1) / table * table;
    if (grid.flat) {
        std::memset(out, 0, size_t(whole));
        return grid.step;
    }
    for (int64_t i = 0; i < whole; i += 4) {
        int32x4_t q = vdupq_n_s32(0);
        if (i < count) q = vaddq_s32(vcvtnq_s32_f32(vmulq_n_f32(four(i), grid.inverse)), vdupq_n_s32(grid.step.zero));
        q = vminq_s32(vdupq_n_s32(top), vmaxq_s32(vdupq_n_s32(0), q));
        for (int64_t j = 0; j < 4; ++j) out[i + j] = i + j < count ? uint8_t(q[j]) : uint8_t(0);
    }
    return grid.step;
}

// Four bytes of each row times four weights, added to the row's sum. A register holds four rows.
inline int32x4_t dot(int32x4_t sum, uint8x16_t inputs, const uint8_t *weights) {
    const int8x16_t x = vreinterpretq_s8_u8(inputs), w = vreinterpretq_s8_u8(vld1q_u8(weights));  // inputs: 0 .. 127
    const int16x8_t low = vmull_s8(vget_low_s8(x), vget_low_s8(w)), high = vmull_high_s8(x, w);
    const int32x4_t a = vpaddlq_s16(low), b = vpaddlq_s16(high);  // pairs of a row stand beside each other
    return vaddq_s32(sum, vpaddq_s32(a, b));
}

// The sums of sixteen rows, four by four: rows 0-3, 8-11 (the unit's first 32 weights), 4-7, 12-15.
struct Sums {
    int32x4_t at[4];
};

inline void add_unit(Sums &sums, const uint8_t *unit, const uint8x16_t (&found)[4]) {
    for (int i = 0; i < 4; ++i) sums.at[i] = dot(sums.at[i], found[i], unit + 32 + 16 * i);
}

inline uint8x16_t low_half(uint8x16_t v) { return vandq_u8(v, vdupq_n_u8(15)); }
inline uint8x16_t high_half(uint8x16_t v) { return vshrq_n_u8(v, 4); }

// Two bytes for each row of eight, from two registers each, interleaved to four.
inline void join(uint8x16_t a, uint8x16_t b, uint8x16_t &first, uint8x16_t &second) {
    const uint16x8_t x = vreinterpretq_u16_u8(a), y = vreinterpretq_u16_u8(b);
    first = vreinterpretq_u8_u16(vzip1q_u16(x, y)), second = vreinterpretq_u8_u16(vzip2q_u16(x, y));
}

void multiply_one(const IntegerTask &t, int n) {
    Sums sums = {{vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0)}};
    const uint8_t *unit = t.units, *x = t.x + n * t.pitch;
    const int32_t *place = t.place;
    uint8x16_t found[4];
    for (int32_t u = 0; u < t.quads; ++u, unit += unit_bytes, ++place) {
        const uint8x16_t bank = vld1q_u8(x + *place), one = vld1q_u8(unit), two = vld1q_u8(unit + 16);
        found[0] = vqtbl1q_u8(bank, low_half(one)), found[1] = vqtbl1q_u8(bank, low_half(two));
        found[2] = vqtbl1q_u8(bank, high_half(one)), found[3] = vqtbl1q_u8(bank, high_half(two));
        add_unit(sums, unit, found);
    }
    for (int32_t u = 0; u < t.pairs; ++u, unit += unit_bytes, place += 2) {
        const uint8x16_t first = vld1q_u8(x + place[0]), second = vld1q_u8(x + place[1]);
        for (int half = 0; half < 2; ++half) {  // rows 0-7, rows 8-15
            const uint8x16_t packed = vld1q_u8(unit + 16 * half);
            join(vqtbl1q_u8(first, low_half(packed)), vqtbl1q_u8(second, high_half(packed)), found[half],
                 found[2 + half]);
        }
        add_unit(sums, unit, found);
    }
    const uint8x16_t odd = vreinterpretq_u8_u16(vdupq_n_u16(0xFF00));
    for (int32_t u = 0; u < t.crossed; ++u, unit += unit_bytes, place += 4) {
        uint8x16_t bank[4];
        for (int i = 0; i < 4; ++i) bank[i] = vld1q_u8(x + place[i]);
        for (int half = 0; half < 2; ++half) {
            const uint8x16_t packed = vld1q_u8(unit + 16 * half), low = low_half(packed), high = high_half(packed);
            join(vbslq_u8(odd, vqtbl1q_u8(bank[1], low), vqtbl1q_u8(bank[0], low)),
                 vbslq_u8(odd, vqtbl1q_u8(bank[3], high), vqtbl1q_u8(bank[2], high)), found[half], found[2 + half]);
        }
        add_unit(sums, unit, found);
    }
    int32_t sum[lanes];
    vst1q_s32(sum, sums.at[0]), vst1q_s32(sum + 8, sums.at[1]);
    vst1q_s32(sum + 4, sums.at[2]), vst1q_s32(sum + 12, sums.at[3]);
    for (int64_t row = 0; row < t.rows; ++row) {
        float value = float(sum[row] - t.step[n].zero * t.sum[row]) * (t.step[n].step * t.scale[row]);
        if (t.bias) value += t.bias[row];
        t.out[n * t.ldo + row] = t.relu && value < 0.0f ? 0.0f : value;
    }
}

void multiply(const IntegerTask &t) {
    for (int n = 0; n < t.tokens; ++n) multiply_one(t, n);
}

}  // namespace

const IntegerLevel &neon_integers() {
    static constexpr IntegerLevel level = {.name = "neon", .quantise = quantise, .multiply = multiply};
    return level;
}

}  // namespace kernels
}  // namespace prunus
