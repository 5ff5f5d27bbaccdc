#include "pack.h"

#include <algorithm>
#include <bitset>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace prunus {
namespace kernels {
namespace {

// Bit j is set where row[j] is not zero (NaN counts), for up to 64 columns.
uint64_t kept_columns(const float *row, int64_t count) {
    uint64_t bits = 0;
    int64_t j = 0;
#if defined(__SSE2__)
    const __m128 zero = _mm_setzero_ps();
    for (; j + 4 <= count; j += 4) bits |= uint64_t(_mm_movemask_ps(_mm_cmpneq_ps(_mm_loadu_ps(row + j), zero))) << j;
#endif
    for (; j < count; ++j) bits |= uint64_t(row[j] != 0.0f) << j;
    return bits;
}

int64_t count_kept(const float *row, int64_t count) {
    int64_t kept = 0;
    for (int64_t j = 0; j < count; j += 64)
        kept += __builtin_popcountll(kept_columns(row + j, std::min<int64_t>(64, count - j)));
    return kept;
}

bool all_finite(const float *row, int64_t count) {
    uint32_t worst = 0;  // the largest exponent field: all ones only for infinities and NaN
    for (int64_t j = 0; j < count; ++j) {
        uint32_t bits;
        std::memcpy(&bits, row + j, sizeof bits);
        worst = std::max(worst, bits & 0x7F800000u);
    }
    return worst != 0x7F800000u;
}

}  // namespace

Plan plan_packing(const float *weight, int64_t rows, int64_t cols, int64_t bank) {
    Plan plan;
    plan.rows = rows, plan.cols = cols, plan.bank = bank;
    plan.slot_start.push_back(0);
    plan.packet_start.push_back(0);
    const int64_t banks = (cols + bank - 1) / bank, per_packet = bank <= 16 ? 2 : 1;
    std::vector<int32_t> most(static_cast<size_t>(banks)), banks_of;
    int64_t latest = -1;
    for (int64_t first = 0; first < rows; first += lanes) {
        std::fill(most.begin(), most.end(), 0);
        for (int64_t r = first; r < std::min(rows, first + lanes); ++r) {
            const float *row = weight + r * cols;
            plan.finite = plan.finite && all_finite(row, cols);
            for (int64_t b = 0; b < banks; ++b) {
                const int32_t kept = int32_t(count_kept(row + b * bank, std::min(bank, cols - b * bank)));
                plan.kept += kept;
                most[size_t(b)] = std::max(most[size_t(b)], kept);
            }
        }
        banks_of.clear();
        for (int64_t b = 0; b < banks; ++b) banks_of.insert(banks_of.end(), size_t(most[size_t(b)]), int32_t(b));
        const bool same = latest >= 0 && plan.schedule.size() - size_t(latest) == banks_of.size() &&
                          std::equal(banks_of.begin(), banks_of.end(), plan.schedule.begin() + latest);
        if (!same) {
            latest = int64_t(plan.schedule.size());
            plan.schedule.insert(plan.schedule.end(), banks_of.begin(), banks_of.end());
        }
        const int64_t slots = int64_t(banks_of.size());
        plan.schedule_start.push_back(latest);
        plan.slot_start.push_back(plan.slot_start.back() + slots);
        plan.packet_start.push_back(plan.packet_start.back() + (slots + per_packet - 1) / per_packet);
    }
    return plan;
}

void fill_packing(const Plan &plan, const float *weight, float *values, uint8_t *index) {
    const int64_t per_packet = plan.bank <= 16 ? 2 : 1;
    for (int64_t r = 0; r < plan.rows; ++r) {
        const int64_t group = r / lanes, lane = r % lanes;
        const float *row = weight + r * plan.cols;
        float *out = values + plan.slot_start[size_t(group)] * lanes + lane;
        uint8_t *packets = index + plan.packet_start[size_t(group)] * lanes + lane;
        const int32_t *schedule = plan.schedule.data() + plan.schedule_start[size_t(group)];
        const int64_t slots = plan.slot_start[size_t(group) + 1] - plan.slot_start[size_t(group)];
        int64_t s = 0;
        while (s < slots) {
            const int32_t bank = schedule[s];
            const int64_t start = bank * plan.bank, width = std::min(plan.bank, plan.cols - start);
            int64_t end = s;
            for (int64_t j = 0; j < width; j += 64) {
                uint64_t kept = kept_columns(row + start + j, std::min<int64_t>(64, width - j));
                for (; kept; kept &= kept - 1, ++end) {
                    const int64_t column = j + __builtin_ctzll(kept);
                    out[end * lanes] = row[start + column];
                    packets[end / per_packet * lanes] |= uint8_t(column << (end % per_packet * 4));
                }
            }
            while (s < slots && schedule[s] == bank) ++s;
        }
    }
}

void unpack(const Packed &p, const float *scale, float *out) {
    const int64_t per_packet = p.per_packet();
    const uint32_t mask = per_packet == 2 ? 15 : 255;
    for (int64_t r = 0; r < p.rows; ++r) {
        const int64_t group = r / lanes, lane = r % lanes;
        const int32_t *schedule = p.schedule + p.schedule_start[group];
        for (int64_t s = 0; s < p.slots(group); ++s) {
            const int64_t at = (p.slot_start[group] + s) * lanes + lane;
            const uint32_t packet = p.index[(p.packet_start[group] + s / per_packet) * lanes + lane];
            float value;
            if (p.kind == Values::f32) {
                value = static_cast<const float *>(p.values)[at];
            } else if (p.kind == Values::bf16) {
                const uint32_t wide = uint32_t(static_cast<const uint16_t *>(p.values)[at]) << 16;
                std::memcpy(&value, &wide, sizeof value);
            } else {
                value = float(static_cast<const int8_t *>(p.values)[at]) * (scale ? scale[r] : 1.0f);
            }
            out[r * p.cols + schedule[s] * p.bank + ((packet >> (s % per_packet * 4)) & mask)] += value;
        }
    }
}

namespace {

bool is_zero(const Packed &p, int64_t at) {
    if (p.kind == Values::f32) return static_cast<const float *>(p.values)[at] == 0.0f;
    if (p.kind == Values::bf16) return (static_cast<const uint16_t *>(p.values)[at] & 0x7fff) == 0;
    return static_cast<const int8_t *>(p.values)[at] == 0;
}

}  // namespace

const char *verify(const Packed &p, int64_t schedule_size, int64_t slots, int64_t packets) {
    const int64_t per_packet = p.per_packet();
    const uint32_t mask = per_packet == 2 ? 15 : 255;
    if (p.slot_start[0] != 0 || p.packet_start[0] != 0) return "its first group does not start at zero";
    for (int64_t g = 1; g <= p.groups; ++g)
        if (p.slot_start[g] < p.slot_start[g - 1] || p.slot_start[g] > slots ||
            p.packet_start[g] < p.packet_start[g - 1] || p.packet_start[g] > packets)
            return "a group's values or index reach past the end";
    std::bitset<256> taken[lanes];  // columns of a bank that a row has named
    for (int64_t g = 0; g < p.groups; ++g) {
        const int64_t here = p.slots(g), start = p.schedule_start[g];
        if (p.packet_start[g + 1] - p.packet_start[g] != (here + per_packet - 1) / per_packet)
            return "a group's index does not match its slots";
        if (start < 0 || start > schedule_size || here > schedule_size - start)
            return "a group's schedule reaches past the end";
        for (int64_t s = 0; s < here; ++s) {
            const int64_t bank = p.schedule[start + s];
            if (bank < 0 || bank >= p.banks()) return "a slot names a bank that does not exist";
            if (s > 0 && bank < p.schedule[start + s - 1]) return "a schedule is out of order";
            if (s >= p.bank && p.schedule[start + s - p.bank] == bank) return "a bank has more slots than columns";
            const uint32_t width = uint32_t(std::min(p.bank, p.cols - bank * p.bank));
            const uint8_t *packet = p.index + (p.packet_start[g] + s / per_packet) * lanes;
            if (s == 0 || bank != p.schedule[start + s - 1])
                for (std::bitset<256> &columns : taken) columns.reset();
            for (int64_t i = 0; i < lanes; ++i) {
                const uint32_t column = uint32_t(packet[i] >> (s % per_packet * 4)) & mask;
                if (column >= width) return "an index points outside its bank";
                if (is_zero(p, (p.slot_start[g] + s) * lanes + i)) continue;
                if (g * lanes + i >= p.rows) return "a value stands past the last row";
                if (taken[i].test(column)) return "a row names a column twice";
                taken[i].set(column);
            }
        }
    }
    if (p.slot_start[p.groups] != slots || p.packet_start[p.groups] != packets)
        return "it holds more than its groups use";
    return nullptr;
}

}  // namespace kernels
}  // namespace prunus
