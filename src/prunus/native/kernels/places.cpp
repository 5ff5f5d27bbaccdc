#include <algorithm>
#include <cstdint>
#include <memory>

#include "run.h"

namespace prunus {
namespace kernels {
namespace {

constexpr int64_t most_kept = 1 << 20;  // weights: the places of more would come from memory, not from a cache

}  // namespace

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
