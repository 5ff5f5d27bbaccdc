// Kernels for aarch64: look-ups through `tbl`, fused multiply-adds. Every such processor has them.
#include <arm_neon.h>

#include "format.h"

namespace prunus {
namespace kernels {
namespace {

constexpr int W = 4;
constexpr int max_vectors = 4;  // with four rows, sixteen sums of 32 registers
typedef float32x4_t vec;
inline vec load(const float *p) { return vld1q_f32(p); }
inline void store(float *p, vec v) { vst1q_f32(p, v); }
// The lanes [first, last) of a register, and a load that touches no others: they are zero.
struct some {
    int64_t first, last;
};
inline some lanes_between(int64_t first, int64_t last) { return {first, last}; }
inline vec load_some(const float *p, some lanes) {
    float v[W];
    for (int i = 0; i < W; ++i) v[i] = i >= lanes.first && i < lanes.last ? p[i] : 0.0f;
    return vld1q_f32(v);
}
inline vec every_second(vec a, vec b) { return vuzp1q_f32(a, b); }
template <int R>
inline void splat_rows(const float *p, vec *out) {
    for (int r = 0; r < R; ++r) out[r] = vld1q_dup_f32(p + r);
}
inline vec fma(vec a, vec b, vec c) { return vfmaq_f32(c, a, b); }
inline vec add(vec a, vec b) { return vaddq_f32(a, b); }
inline vec all(float value) { return vdupq_n_f32(value); }
inline vec positive(vec v) { return vbslq_f32(vcltzq_f32(v), all(0.0f), v); }        // keeps NaN
inline vec at_most(vec cap, vec v) { return vbslq_f32(vcgtq_f32(v, cap), cap, v); }  // likewise

template <typename Offset>
struct Placer {
    const uint32_t stride;
    void put(uint8x16_t j, uint32_t base, uint16_t *out) const {
        const uint16x8_t start = vdupq_n_u16(uint16_t(base));
        vst1q_u16(out, vmlaq_n_u16(start, vmovl_u8(vget_low_u8(j)), uint16_t(stride)));
        vst1q_u16(out + 8, vmlaq_n_u16(start, vmovl_high_u8(j), uint16_t(stride)));
    }
    void put(uint8x16_t j, uint32_t base, uint32_t *out) const {
        const uint32x4_t start = vdupq_n_u32(base);
        const uint16x8_t half[] = {vmovl_u8(vget_low_u8(j)), vmovl_high_u8(j)};
        for (int i = 0; i < 2; ++i, out += 8) {
            vst1q_u32(out, vmlaq_n_u32(start, vmovl_u16(vget_low_u16(half[i])), stride));
            vst1q_u32(out + 4, vmlaq_n_u32(start, vmovl_high_u16(half[i]), stride));
        }
    }
    void low(const uint8_t *packet, uint32_t base, Offset *out) const {
        put(vandq_u8(vld1q_u8(packet), vdupq_n_u8(15)), base, out);
    }
    void high(const uint8_t *packet, uint32_t base, Offset *out) const {
        put(vshrq_n_u8(vld1q_u8(packet), 4), base, out);
    }
    void whole(const uint8_t *packet, uint32_t base, Offset *out) const { put(vld1q_u8(packet), base, out); }
};

#include "tile.h"

// Four by four floats.
inline void transpose4x4(const float *from, int64_t ldf, float *to, int64_t ldt) {
    const float32x4_t r[] = {load(from), load(from + ldf), load(from + 2 * ldf), load(from + 3 * ldf)};
    const float32x4_t a = vtrn1q_f32(r[0], r[1]), b = vtrn2q_f32(r[0], r[1]);
    const float32x4_t c = vtrn1q_f32(r[2], r[3]), d = vtrn2q_f32(r[2], r[3]);
    store(to, vcombine_f32(vget_low_f32(a), vget_low_f32(c)));
    store(to + ldt, vcombine_f32(vget_low_f32(b), vget_low_f32(d)));
    store(to + 2 * ldt, vcombine_f32(vget_high_f32(a), vget_high_f32(c)));
    store(to + 3 * ldt, vcombine_f32(vget_high_f32(b), vget_high_f32(d)));
}
inline void transpose8(const float *from, int64_t ldf, float *to, int64_t ldt) {
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 8; j += 4) transpose4x4(from + i * ldf + j, ldf, to + j * ldt + i, ldt);
}
inline void transpose4(const float *from, int64_t ldf, float *to, int64_t ldt) {
    for (int i = 0; i < 16; i += 4) transpose4x4(from + i * ldf, ldf, to + i, ldt);
}

#include "transpose.h"

inline vec value_at(const float *p) { return vld1q_f32(p); }
inline vec value_at(const uint16_t *p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
inline vec value_at(const int8_t *p) {
    const int8_t four[8] = {p[0], p[1], p[2], p[3]};
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vld1_s8(four)))));
}

// A bank of sixteen floats is 64 bytes, which is what one `tbl` over four registers reads. The four bytes of a float
// stand at four times its index and after it.
template <typename T>
inline void permute_samples(const Packed &p, const Ready *, int64_t group, const float *x, int64_t ldx, const uint8_t *,
                            int64_t, int samples, float *out) {
    const T *values = static_cast<const T *>(p.values) + p.slot_start[group] * lanes;
    const uint8_t *index = p.index + p.packet_start[group] * lanes;
    const int32_t *schedule = p.schedule + p.schedule_start[group];
    const uint8x16_t ends = vreinterpretq_u8_u32(vdupq_n_u32(0x03020100u));
    for (int n = 0; n < samples; ++n, out += lanes) {
        vec sum[4] = {all(0.0f), all(0.0f), all(0.0f), all(0.0f)};
        uint8x16x4_t bank = {};
        for (int64_t s = 0; s < p.slots(group); ++s) {
            if (s == 0 || schedule[s] != schedule[s - 1])
                bank = vld1q_u8_x4(reinterpret_cast<const uint8_t *>(x + n * ldx + int64_t(schedule[s]) * 16));
            const uint8x16_t packet = vld1q_u8(index + s / 2 * lanes);
            const uint8x16_t at = vshlq_n_u8(s % 2 ? vshrq_n_u8(packet, 4) : vandq_u8(packet, vdupq_n_u8(15)), 2);
            const uint8x16_t low = vzip1q_u8(at, at), high = vzip2q_u8(at, at);
            const uint8x16_t places[] = {vzip1q_u8(low, low), vzip2q_u8(low, low), vzip1q_u8(high, high),
                                         vzip2q_u8(high, high)};
            for (int i = 0; i < 4; ++i) {
                const vec found = vreinterpretq_f32_u8(vqtbl4q_u8(bank, vaddq_u8(places[i], ends)));
                sum[i] = fma(value_at(values + s * lanes + 4 * i), found, sum[i]);
            }
        }
        for (int i = 0; i < 4; ++i) store(out + 4 * i, sum[i]);
    }
}

#include "level.h"

}  // namespace

const Level &neon_level() {
    static constexpr Level level = level_of("neon", {.up_to = 3, .bank = 16});
    return level;
}

}  // namespace kernels
}  // namespace prunus
