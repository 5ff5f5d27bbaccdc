// Convolutions whose rows each read one channel, their own: channel after channel, in a plane that stays in the cache.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "conv.h"
#include "image.h"
#include "pool.h"

namespace prunus {
namespace kernels {
namespace {

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The pixels of a row that some tap may read, each phase of the stride in its own part of `to`; nothing else is written.
void copy_inside(const Level &level, const Conv &c, const float *from, int64_t phases, int64_t pitch, float *to) {
    if (c.stride_x == 1) {
        std::memcpy(to + c.pad_x, from, size_t(std::min(c.width, pitch - c.pad_x)) * sizeof(float));
        return;
    }
    for (int64_t phase = 0; phase < phases; ++phase, to += pitch) {
        const int64_t first = std::max<int64_t>(0, divide_up(c.pad_x - phase, c.stride_x));
        const int64_t end = std::min(pitch, Conv::steps(c.width + c.pad_x - phase, c.stride_x));
        const float *at = from + phase - c.pad_x;
        if (c.stride_x == 2)
            level.copy_second(at + 2 * first, end - first, to + first);
        else
            for (int64_t j = first; j < end; ++j) to[j] = at[c.stride_x * j];
    }
}

}  // namespace

// The weights [channel][tap] of a convolution whose rows each read their own channel alone; none for any other.
std::vector<float> own_channels(const Level &level, const Packed &p, const Conv &c) {
    if (p.rows != c.channels) return {};
    const int64_t taps = c.kernel_y * c.kernel_x, per_packet = p.per_packet();
    const bool few = c.channels < p.bank;
    std::vector<float> out(size_t(p.rows * taps)), decoded;
    for (int64_t q = 0; q < p.groups; ++q) {
        decoded.resize(size_t(p.slots(q) * lanes));
        const float *values = level.values(p, q, 0, p.slots(q), decoded.data());
        const uint8_t *index = p.index + p.packet_start[q] * lanes;
        const int32_t *schedule = p.schedule + p.schedule_start[q];
        for (int64_t s = 0; s < p.slots(q); ++s)
            for (int64_t lane = 0; lane < lanes; ++lane) {
                const float value = values[s * lanes + lane];
                if (value == 0.0f) continue;  // fills up the slot
                const uint8_t packet = index[s / per_packet * lanes + lane];
                const int64_t inside = per_packet == 2 ? packet >> 4 * (s % 2) & 15 : packet;
                const int64_t bank = schedule[s], column = bank * p.bank + inside, row = q * lanes + lane;
                const int64_t channel = few ? column % c.channels : bank / taps * p.bank + inside;
                if (channel != row) return {};
                out[size_t(row * taps + (few ? column / c.channels : bank % taps))] = value;
            }
    }
    return out;
}

// Channel by channel: its rows are copied with the zeros around them, the phases of the stride side by side.
void ConvJob::by_channel(const float *x, const float *other, float *y, int threads) const {
    const int64_t shift = c_.dilation_x * (c_.kernel_x - 1) / c_.stride_x;
    const int64_t pitch = divide_up(g_.out_w, level_.width) * level_.width + shift, line = g_.phases_x * pitch;
    const int64_t rows = (g_.out_h - 1) * c_.stride_y + c_.dilation_y * (c_.kernel_y - 1) + 1,
                  parts = threads > 1 ? std::min(c_.channels, 4 * int64_t(threads)) : 1;
    std::vector<int64_t> at;
    for (int64_t tap = 0; tap < g_.taps; ++tap) {
        const int64_t right = tap % c_.kernel_x * c_.dilation_x;
        at.push_back(tap / c_.kernel_x * c_.dilation_y * line + right % c_.stride_x * pitch + right / c_.stride_x);
    }
    const int64_t plane = plane_size(c_.in, c_.height, c_.width), out = plane_size(c_.out, g_.out_h, g_.out_w),
                  also = plane_size(c_.other, g_.out_h, g_.out_w);
    parallel(threads, parts, [&](int64_t part) {
        float *copy = static_cast<float *>(scratch(Scratch::window, rows * line * int64_t(sizeof(float))));
        std::fill(copy, copy + rows * line, 0.0f);  // what lies around the image stays so for every channel
        for (int64_t k = c_.channels * part / parts; k < c_.channels * (part + 1) / parts; ++k) {
            for (int64_t i = c_.pad_y; i < std::min(rows, c_.pad_y + c_.height); ++i) {
                const int64_t row = i - c_.pad_y;
                copy_inside(level_, c_, x + k * plane + pixel(c_.in, c_.width, row, 0), g_.phases_x, pitch,
                            copy + i * line);
            }
            level_.depthwise({.in = copy,
                              .step = c_.stride_y * line,
                              .taps = g_.taps,
                              .weight = own_.data() + k * g_.taps,
                              .at = at.data(),
                              .height = g_.out_h,
                              .width = g_.out_w,
                              .finish = {.bias = f_.bias ? f_.bias + k : nullptr,
                                         .scale = f_.scale ? f_.scale + k : nullptr,
                                         .other = other ? other + k * also + pixel(c_.other, g_.out_w, 0, 0) : nullptr,
                                         .relu = f_.relu,
                                         .cap = f_.cap},
                              .out = y + k * out + pixel(c_.out, g_.out_w, 0, 0),
                              .pitch = c_.out.plane ? c_.out.pitch : g_.out_w,
                              .other_pitch = c_.other.plane ? c_.other.pitch : g_.out_w});
        }
    });
}

}  // namespace kernels
}  // namespace prunus
