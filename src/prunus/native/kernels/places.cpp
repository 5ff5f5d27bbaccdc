#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

#include "run.h"

namespace prunus {
namespace kernels {
namespace {

constexpr int64_t most_kept = 1 << 20;  // weights: the places of more would come from memory, not from a cache

struct Aligned {
    explicit Aligned(int64_t bytes) : at(static_cast<uint8_t *>(::operator new(size_t(bytes), std::align_val_t(64)))) {
        std::memset(at, 0, size_t(bytes));
    }
    ~Aligned() { ::operator delete(at, std::align_val_t(64)); }
    Aligned(const Aligned &) = delete;
    uint8_t *const at;
};

int64_t value_bytes(Values kind) { return kind == Values::f32 ? 4 : kind == Values::bf16 ? 2 : 1; }

// One slot of one group.
struct Slot {
    const Packed &p;
    int64_t group, number;
    const uint8_t *value(int64_t row) const {
        const int64_t at = (p.slot_start[group] + number) * lanes + row;
        return static_cast<const uint8_t *>(p.values) + at * value_bytes(p.kind);
    }
    uint8_t index(int64_t row) const {
        const uint8_t *packet = p.index + (p.packet_start[group] + number / 2) * lanes;
        return uint8_t(packet[row] >> (number % 2 * 4) & 15);
    }
    bool zero(int64_t row) const {
        const uint8_t *bytes = value(row);
        return std::all_of(bytes, bytes + value_bytes(p.kind), [](uint8_t byte) { return byte == 0; });
    }
    // Which four columns of the bank all its weights lie in; -1 if in several.
    int quad() const {
        int found = -1;
        for (int64_t row = 0; row < lanes; ++row) {
            if (zero(row)) continue;
            const int here = index(row) / 4;
            if (found >= 0 && found != here) return -1;
            found = here;
        }
        return found < 0 ? 0 : found;
    }
};

bool all_quads(const Packed &p) {
    for (int64_t g = 0; g < p.groups; ++g)
        for (int64_t s = 0; s < p.slots(g); ++s)
            if (Slot{p, g, s}.quad() < 0) return false;
    return true;
}

void arrange_quad(const Slot &slot, int64_t place, uint8_t *out) {
    const int quad = slot.quad();
    for (int64_t i = 0; i < lanes; ++i) {
        const int64_t row = quad_row(slot.p.kind, i);
        const uint32_t column = slot.zero(row) ? 0 : slot.index(row) % 4;
        uint32_t word;
        std::memcpy(&word, out + i * 4, sizeof word);
        word |= column << (2 * place);
        std::memcpy(out + i * 4, &word, sizeof word);
    }
    const int32_t from = slot.p.schedule[slot.p.schedule_start[slot.group] + slot.number] * 16 + quad * 4;
    std::memcpy(out + lanes * 4 + place * 4, &from, sizeof from);
}

int64_t pair_bytes(Values kind) { return 2 * lanes * (value_bytes(kind) + (kind == Values::f32 ? 0 : 1)); }

void arrange_pair(const Slot &slot, uint8_t *out) {
    const Values kind = slot.p.kind;
    const int64_t odd = slot.number % 2, size = value_bytes(kind), together = 16 / size;
    if (kind != Values::f32) {
        for (int64_t i = 0; i < lanes; ++i) out[odd * lanes + i] = slot.index(ready_row(kind, i));
        out += 2 * lanes;
    }
    for (int64_t row = 0; row < lanes; ++row)
        std::memcpy(out + (row / together * 2 + odd) * 16 + row % together * size, slot.value(row), size_t(size));
}

}  // namespace

struct Places::Arranged {
    std::vector<int64_t> start;
    Aligned bytes;
    Ready ready;

    static std::vector<int64_t> starts(const Packed &p, bool quads) {
        std::vector<int64_t> out{0};
        for (int64_t g = 0; g < p.groups; ++g) {
            const int64_t slots = p.slots(g);
            out.push_back(out.back() + (quads ? (slots + quad_slots - 1) / quad_slots * quad_bytes
                                              : (slots + 1) / 2 * pair_bytes(p.kind)));
        }
        return out;
    }

    Arranged(const Packed &p, bool quads)
        : start(starts(p, quads)), bytes(start.back() + 64), ready{bytes.at, start.data(), quads} {
        for (int64_t g = 0; g < p.groups; ++g)
            for (int64_t s = 0; s < p.slots(g); ++s) {
                uint8_t *out = bytes.at + start[size_t(g)];
                if (quads)
                    arrange_quad({p, g, s}, s % quad_slots, out + s / quad_slots * quad_bytes);
                else
                    arrange_pair({p, g, s}, out + s / 2 * pair_bytes(p.kind));
            }
    }
};

struct Places::Cut {
    std::vector<int64_t> start;
    std::unique_ptr<Aligned> bytes;
    Blocks blocks;

    Cut(const Level &level, const Packed &p, const float *scale, const Columns &columns, int64_t banks) : start{0} {
        const int64_t count = (p.banks() + banks - 1) / banks;
        std::vector<int64_t> at(size_t(p.groups), 0);
        for (int64_t b = 0; b < count; ++b)
            for (int64_t g = 0; g < p.groups; ++g) {
                const int32_t *schedule = p.schedule + p.schedule_start[g];
                int64_t &s = at[size_t(g)], first = s;
                while (s < p.slots(g) && schedule[s] < (b + 1) * banks) ++s;
                start.push_back(start.back() + s - first);
            }
        bytes = std::make_unique<Aligned>(start.back() * beside_bytes + 64);
        std::fill(at.begin(), at.end(), 0);
        std::vector<uint16_t> places;
        std::vector<float> room;
        for (int64_t b = 0; b < count; ++b)
            for (int64_t g = 0; g < p.groups; ++g) {
                const size_t number = size_t(b * p.groups + g);
                const int64_t slots = start[number + 1] - start[number], first = at[size_t(g)];
                at[size_t(g)] += slots;
                places.resize(size_t(slots * lanes)), room.resize(size_t(slots * lanes));
                level.decode(p, columns, g, first, first + slots, places.data());
                const float *values = level.values(p, g, first, first + slots, room.data());
                uint8_t *out = bytes->at + start[number] * beside_bytes;
                for (int64_t s = 0; s < slots; ++s, out += beside_bytes) {
                    float *value = reinterpret_cast<float *>(out);
                    std::memcpy(value, values + s * lanes, lanes * sizeof(float));
                    for (int64_t r = 0; scale && r < std::min(lanes, p.rows - g * lanes); ++r)
                        value[r] *= scale[g * lanes + r];
                    std::memcpy(out + lanes * sizeof(float), places.data() + s * lanes, lanes * sizeof(uint16_t));
                }
            }
        blocks = {bytes->at, start.data(), banks};
    }
};

const Blocks *Places::blocks(const Level &level, const Packed &p, const float *scale, const Columns &columns,
                             int64_t banks) {
    const int which = level.width == 4 ? 0 : level.width == 8 ? 1 : 2;
    // Scales in the weights round otherwise than scales after the sums: then the first call takes them as all others do.
    const bool again = asked_cut_[which].exchange(true);
    if (p.slot_start[p.groups] * lanes > most_kept || !(again || scale)) return nullptr;
    const Cut *found = cut_[which].load();
    if (!found) {
        std::unique_ptr<const Cut> made(new Cut(level, p, scale, columns, banks));
        found = cut_[which].compare_exchange_strong(found, made.get()) ? made.release() : cut_[which].load();
    }
    return &found->blocks;
}

Places::~Places() {
    delete arranged_.load();
    for (auto &cut : cut_) delete cut.load();
}

const Ready *Places::ready(const Level &level, const Packed &p) {
    if (!level.ready || p.bank != 16 || !asked_.exchange(true)) return nullptr;
    const Arranged *found = arranged_.load();
    if (!found) {
        const bool small = p.slot_start[p.groups] * lanes <= most_kept, quads = all_quads(p);
        if (!small && !quads) return nullptr;
        std::unique_ptr<const Arranged> made(new Arranged(p, quads));
        found = arranged_.compare_exchange_strong(found, made.get()) ? made.release() : arranged_.load();
    }
    return &found->ready;
}

const uint16_t *Places::of(const Level &level, const Packed &p, const Columns &columns, int64_t count) {
    One &one = each_[level.width == 4 ? 0 : level.width == 8 ? 1 : 2];
    const int64_t weights = p.slot_start[p.groups] * lanes;
    if (weights > most_kept || !one.asked.exchange(true)) return nullptr;
    const uint32_t *base = columns.table ? columns.table : columns.base;
    const Kept *kept = one.kept.load();
    if (!kept) {  // without a lock, which a fork could leave taken
        std::unique_ptr<Kept> made(
            new Kept{{base, base + count}, columns.stride, std::vector<uint16_t>(size_t(weights))});
        for (int64_t g = 0; g < p.groups; ++g)
            level.decode(p, columns, g, 0, p.slots(g), made->at.data() + p.slot_start[g] * lanes);
        kept = one.kept.compare_exchange_strong(kept, made.get()) ? made.release() : one.kept.load();
    }
    const bool same = kept->stride == columns.stride && int64_t(kept->columns.size()) == count &&
                      std::equal(kept->columns.begin(), kept->columns.end(), base);
    return same ? kept->at.data() : nullptr;
}

}  // namespace kernels
}  // namespace prunus
