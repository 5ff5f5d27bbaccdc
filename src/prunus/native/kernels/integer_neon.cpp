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

#include "integer_plain.h"

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

inline uint8x16_t four_everywhere(const uint8_t *at) {
    uint32_t four;
    std::memcpy(&four, at, 4);
    return vreinterpretq_u8_u32(vdupq_n_u32(four));
}

inline uint8x16_t low_half(uint8x16_t v) { return vandq_u8(v, vdupq_n_u8(15)); }
inline uint8x16_t high_half(uint8x16_t v) { return vshrq_n_u8(v, 4); }

// Two bytes for each row of eight, from two registers each, interleaved to four.
inline void join(uint8x16_t a, uint8x16_t b, uint8x16_t &first, uint8x16_t &second) {
    const uint16x8_t x = vreinterpretq_u16_u8(a), y = vreinterpretq_u16_u8(b);
    first = vreinterpretq_u8_u16(vzip1q_u16(x, y)), second = vreinterpretq_u8_u16(vzip2q_u16(x, y));
}

void add_up(const IntegerTask &t, const uint8_t *x, int32_t (&sum)[lanes]) {
    Sums sums = {{vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0)}};
    const uint8_t *unit = t.units;
    const int32_t *place = t.place;
    uint8x16_t found[4];
    for (int32_t b = 0; b < t.full; ++b, unit += full_bytes, ++place)
        for (int k = 0; k < 4; ++k) {
            const uint8x16_t four = four_everywhere(x + *place + 4 * k);
            for (int i = 0; i < 4; ++i) sums.at[i] = dot(sums.at[i], four, unit + 64 * k + 16 * i);
        }
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
    vst1q_s32(sum, sums.at[0]), vst1q_s32(sum + 8, sums.at[1]);
    vst1q_s32(sum + 4, sums.at[2]), vst1q_s32(sum + 12, sums.at[3]);
}

void multiply(const IntegerTask &t) { multiply_tokens_with(t, add_up); }

#include "integer_level.h"

}  // namespace

const IntegerLevel &neon_integers() {
    static constexpr IntegerLevel level = integer_level("neon");
    return level;
}

}  // namespace kernels
}  // namespace prunus
