// Kernels in plain C++ for any processor: the same algorithms, left to the compiler.
#include "format.h"

namespace prunus {
namespace kernels {
namespace {

constexpr int W = 4;
constexpr int max_vectors = 3;  // with four rows, as many sums as there are registers for
struct vec {
    float at[W];
};
inline vec load(const float *p) {
    vec v;
    for (int i = 0; i < W; ++i) v.at[i] = p[i];
    return v;
}
inline void store(float *p, vec v) {
    for (int i = 0; i < W; ++i) p[i] = v.at[i];
}
// The lanes [first, last) of a register, and a load that touches no others: they are zero.
struct some {
    int64_t first, last;
};
inline some lanes_between(int64_t first, int64_t last) { return {first, last}; }
inline vec load_some(const float *p, some lanes) {
    vec v;
    for (int i = 0; i < W; ++i) v.at[i] = i >= lanes.first && i < lanes.last ? p[i] : 0.0f;
    return v;
}
// Lanes 0, 2, 4 ... of a register and of the one that follows it.
inline vec every_second(vec a, vec b) {
    vec v;
    for (int i = 0; i < W; ++i) v.at[i] = 2 * i < W ? a.at[2 * i] : b.at[2 * i - W];
    return v;
}
template <int R>
inline void splat_rows(const float *p, vec *out) {
    for (int r = 0; r < R; ++r)
        for (int i = 0; i < W; ++i) out[r].at[i] = p[r];
}
inline vec fma(vec a, vec b, vec c) {
    vec v;
    for (int i = 0; i < W; ++i) v.at[i] = a.at[i] * b.at[i] + c.at[i];
    return v;
}
inline vec add(vec a, vec b) {
    vec v;
    for (int i = 0; i < W; ++i) v.at[i] = a.at[i] + b.at[i];
    return v;
}
inline vec all(float value) {
    vec v;
    for (int i = 0; i < W; ++i) v.at[i] = value;
    return v;
}
inline vec positive(vec v) {
    for (int i = 0; i < W; ++i) v.at[i] = v.at[i] < 0.0f ? 0.0f : v.at[i];
    return v;
}
inline vec at_most(vec cap, vec v) {
    for (int i = 0; i < W; ++i) v.at[i] = v.at[i] > cap.at[i] ? cap.at[i] : v.at[i];
    return v;
}

// Where the columns of sixteen lanes lie: out[i] = base + index[i] * stride, the index in the low four bits of the
// packet's bytes, in the high four, or in all eight.
template <typename Offset>
struct Placer {
    const uint32_t stride;
    void low(const uint8_t *packet, uint32_t base, Offset *out) const {
        for (int i = 0; i < lanes; ++i) out[i] = Offset(base + (packet[i] & 15) * stride);
    }
    void high(const uint8_t *packet, uint32_t base, Offset *out) const {
        for (int i = 0; i < lanes; ++i) out[i] = Offset(base + (packet[i] >> 4) * stride);
    }
    void whole(const uint8_t *packet, uint32_t base, Offset *out) const {
        for (int i = 0; i < lanes; ++i) out[i] = Offset(base + packet[i] * stride);
    }
};

#include "tile.h"

inline void transpose8(const float *from, int64_t ldf, float *to, int64_t ldt) {
    for (int i = 0; i < 8; ++i)
        for (int j = 0; j < 8; ++j) to[j * ldt + i] = from[i * ldf + j];
}

inline void transpose4(const float *from, int64_t ldf, float *to, int64_t ldt) {
    for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 4; ++j) to[j * ldt + i] = from[i * ldf + j];
}

#include "transpose.h"

template <typename T>
inline float value_at(const T *p) {
    return float(*p);
}
template <>
inline float value_at<uint16_t>(const uint16_t *p) {
    union {
        uint32_t bits;
        float value;
    } both;
    both.bits = uint32_t(*p) << 16;
    return both.value;
}

template <typename T>
inline void permute_samples(const Packed &p, const Ready *, int64_t group, const float *x, int64_t ldx, const uint8_t *,
                            int64_t, int samples, float *out) {
    const T *values = static_cast<const T *>(p.values) + p.slot_start[group] * lanes;
    const uint8_t *index = p.index + p.packet_start[group] * lanes;
    const int32_t *schedule = p.schedule + p.schedule_start[group];
    for (int n = 0; n < samples; ++n, out += lanes) {
        for (int i = 0; i < lanes; ++i) out[i] = 0.0f;
        for (int64_t s = 0; s < p.slots(group); ++s) {
            const float *bank = x + n * ldx + int64_t(schedule[s]) * 16;
            const uint8_t *packet = index + s / 2 * lanes;
            for (int i = 0; i < lanes; ++i)
                out[i] += value_at(values + s * lanes + i) * bank[(packet[i] >> (4 * (s % 2))) & 15];
        }
    }
}

#include "level.h"

}  // namespace

const Level &portable_level() {
    static constexpr Level level = level_of("portable", {.up_to = 3, .bank = 16});
    return level;
}

}  // namespace kernels
}  // namespace prunus
