#include "algorithm.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace prunus::selection {
namespace {

constexpr std::int64_t block = 1 << 13;  // scores at a time: 32 KB, the first-level cache
constexpr std::int64_t few = 1 << 15;    // up to here every key is a candidate
constexpr std::int64_t sample_size = 1 << 16;
constexpr std::int32_t highest = std::numeric_limits<std::int32_t>::max();

template <typename Bits>
const BlockKernels<Bits> &table(const Kernels &kernels);
template <>
const BlockKernels<std::int32_t> &table<std::int32_t>(const Kernels &kernels) {
    return kernels.single;
}
template <>
const BlockKernels<std::int16_t> &table<std::int16_t>(const Kernels &kernels) {
    return kernels.half;
}

template <typename Bits>
std::int32_t key_of(Bits bits, bool absolute) {
    const std::int32_t wide = bits, magnitude = wide & (sizeof(Bits) == 4 ? 0x7fffffff : 0x7fff);
    return absolute || wide >= 0 ? magnitude : -magnitude;
}

// Calls visit(data, n) for every block of every part, in order, until it returns false.
template <typename Bits, typename Visit>
bool for_blocks(const std::vector<Part> &parts, Visit visit) {
    for (const Part &part : parts)
        for (std::int64_t start = 0; start < part.size; start += block)
            if (!visit(static_cast<const Bits *>(part.data) + start, std::min(block, part.size - start))) return false;
    return true;
}

// A fresh mask is touched here for the first time; with large pages that costs a fraction of the page faults, which would
// otherwise take longer than the selection itself. A hint only: where it is refused nothing changes.
void prefer_large_pages([[maybe_unused]] std::uint8_t *start, [[maybe_unused]] std::int64_t size) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    constexpr std::uintptr_t page = 1 << 21;
    const std::uintptr_t first = (reinterpret_cast<std::uintptr_t>(start) + page - 1) / page * page;
    const std::uintptr_t last = (reinterpret_cast<std::uintptr_t>(start) + std::uintptr_t(size)) / page * page;
    if (first < last) (void)madvise(reinterpret_cast<void *>(first), last - first, MADV_HUGEPAGE);
#endif
}

std::int64_t total_size(const std::vector<Part> &parts) {
    std::int64_t total = 0;
    for (const Part &part : parts) total += part.size;
    return total;
}

// Keys at one random place of each of many equal strata: spread out, and read in order of address.
template <typename Bits>
std::vector<std::int32_t> draw_sample(const std::vector<Part> &parts, bool absolute) {
    const double stride = double(total_size(parts)) / double(sample_size);
    std::vector<std::int32_t> sample;
    sample.reserve(sample_size);
    std::uint64_t state = 0x9e3779b97f4a7c15u;
    std::size_t part = 0;
    std::int64_t before = 0;
    for (std::int64_t i = 0; i < sample_size; ++i) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const double shift = double(state >> 11) * 0x1p-53;
        std::int64_t place = std::int64_t((double(i) + shift) * stride);
        while (part < parts.size() && place - before >= parts[part].size) before += parts[part++].size;
        if (part == parts.size()) break;  // rounding at the very end
        sample.push_back(key_of(static_cast<const Bits *>(parts[part].data)[place - before], absolute));
    }
    return sample;
}

struct Bracket {
    std::int32_t low, high;
};

// Five standard deviations of the binomial rank to each side.
Bracket bracket_of(std::vector<std::int32_t> sample, double fraction) {
    const double size = double(sample.size());
    const double spread = 5 * std::sqrt(size * fraction * (1 - fraction)) + 5;
    const double first = std::floor(fraction * size - spread), last = std::ceil(fraction * size + spread);
    Bracket bracket{lowest, highest};
    if (first >= 0) {
        std::nth_element(sample.begin(), sample.begin() + std::ptrdiff_t(first), sample.end());
        bracket.low = sample[std::size_t(first)];
    }
    if (last < size) {
        std::nth_element(sample.begin(), sample.begin() + std::ptrdiff_t(last), sample.end());
        bracket.high = sample[std::size_t(last)];
    }
    return bracket;
}

Threshold select_from(std::vector<std::int32_t> &keys, std::int64_t count) {
    std::nth_element(keys.begin(), keys.begin() + std::ptrdiff_t(count - 1), keys.end());
    const std::int32_t key = keys[std::size_t(count - 1)];
    return {key, count - std::count_if(keys.begin(), keys.begin() + std::ptrdiff_t(count),
                                       [key](std::int32_t other) { return other < key; })};
}

// The threshold from the keys inside the bracket; false where it lies outside or too many keys lie inside.
template <typename Bits>
bool try_bracket(const std::vector<Part> &parts, bool absolute, std::int64_t count, Bracket bracket, std::int64_t limit,
                 const Kernels &kernels, Threshold *found, Tally *tally) {
    std::vector<std::int32_t> keys(std::size_t(2 * block + 16));
    std::int64_t used = 0;
    const bool whole = for_blocks<Bits>(parts, [&](const Bits *data, std::int64_t n) {
        if (used + block + 16 > std::int64_t(keys.size())) keys.resize(keys.size() * 2);
        std::int32_t *end = table<Bits>(kernels).scan(data, std::size_t(n), absolute, bracket.low, bracket.high,
                                                      keys.data() + used, tally);
        used = end - keys.data();
        return used <= limit;
    });
    if (!whole || count <= tally->under || count > tally->under + used) return false;
    keys.resize(std::size_t(used));
    *found = select_from(keys, count - tally->under);
    return true;
}

template <typename Bits>
bool try_point(const std::vector<Part> &parts, bool absolute, std::int64_t count, std::int32_t key,
               const Kernels &kernels, Threshold *found, Tally *tally) {
    for_blocks<Bits>(parts, [&](const Bits *data, std::int64_t n) {
        table<Bits>(kernels).count(data, std::size_t(n), absolute, key, tally);
        return true;
    });
    if (count <= tally->under || count > tally->under + tally->equal) return false;
    *found = {key, count - tally->under};
    return true;
}

// Digit by digit from the top, 11 + 11 + 10 bits: needs no luck and no memory. Four histograms take turns, since equal
// scores would otherwise wait for one another.
template <typename Bits>
Threshold by_digits(const std::vector<Part> &parts, bool absolute, std::int64_t count) {
    std::uint32_t prefix = 0, known = 0;
    for (const auto [shift, bits] : {std::pair<int, int>{21, 11}, {10, 11}, {0, 10}}) {
        std::vector<std::int64_t> counts(std::size_t(4) << bits);
        for_blocks<Bits>(parts, [&, shift = shift, bits = bits](const Bits *data, std::int64_t n) {
            for (std::int64_t i = 0; i < n; ++i) {
                const std::uint32_t key = std::uint32_t(key_of(data[i], absolute)) ^ 0x80000000u;
                const std::uint32_t digit = (key >> shift) & ((1u << bits) - 1);
                counts[(std::size_t(i & 3) << bits) + digit] += (key & known) == prefix;
            }
            return true;
        });
        std::uint32_t digit = 0;
        for (;; ++digit) {
            std::int64_t here = 0;
            for (std::size_t turn = 0; turn < 4; ++turn) here += counts[(turn << bits) + digit];
            if (count <= here) break;
            count -= here;
            assert(digit + 1 < 1u << bits);
        }
        prefix |= digit << shift;
        known |= ((1u << bits) - 1) << shift;
    }
    return {std::int32_t(prefix ^ 0x80000000u), count};
}

template <typename Bits>
bool threshold_of(const std::vector<Part> &parts, Order order, std::int64_t count, const Kernels &kernels,
                  Threshold *found) {
    const std::int64_t total = total_size(parts);
    Tally tally;
    if (count == 0) {
        *found = {lowest, 0};
        Threshold unused;
        try_point<Bits>(parts, order.absolute, 0, 0, kernels, &unused, &tally);
        return tally.largest <= order.infinity;
    }
    Bracket bracket{lowest, highest};
    if (total > few) bracket = bracket_of(draw_sample<Bits>(parts, order.absolute), double(count) / double(total));
    const std::int64_t limit = std::max(few, total / 16);
    if (bracket.low < bracket.high &&
        try_bracket<Bits>(parts, order.absolute, count, bracket, limit, kernels, found, &tally))
        return tally.largest <= order.infinity;
    for (const std::int32_t key : {bracket.low, bracket.high}) {  // many equal scores: perhaps one of the ends is it
        tally = Tally();
        const bool hit = try_point<Bits>(parts, order.absolute, count, key, kernels, found, &tally);
        if (tally.largest > order.infinity) return false;
        if (hit) return true;
    }
    *found = by_digits<Bits>(parts, order.absolute, count);
    return true;
}

// Marks one block and settles the ties in it.
template <typename Bits>
void mark_block(const Bits *data, std::int64_t n, bool absolute, Threshold *left, const Kernels &kernels,
                std::uint8_t *mask) {
    Tally tally;
    if (left->ties == 0) {
        table<Bits>(kernels).mark(data, std::size_t(n), absolute, left->key - 1, mask, &tally);
        return;
    }
    table<Bits>(kernels).mark(data, std::size_t(n), absolute, left->key, mask, &tally);
    if (tally.equal <= left->ties) {
        left->ties -= tally.equal;
        return;
    }
    for (std::int64_t i = 0; i < n; ++i)
        if (key_of(data[i], absolute) == left->key) {
            mask[i] = left->ties == 0;
            left->ties -= left->ties > 0;
        }
}

template <typename Bits>
void mask_of(const std::vector<Part> &parts, const std::vector<std::uint8_t *> &masks, bool absolute, Threshold left,
             const Kernels &kernels) {
    for (std::size_t p = 0; p < parts.size(); ++p)
        for (std::int64_t start = 0; start < parts[p].size; start += block)
            mark_block(static_cast<const Bits *>(parts[p].data) + start, std::min(block, parts[p].size - start),
                       absolute, &left, kernels, masks[p] + start);
}

template <typename Bits>
void indices_of(Part part, bool absolute, Threshold left, std::int64_t count, const Kernels &kernels,
                std::int64_t *indices) {
    std::vector<std::uint8_t> mask(std::size_t(block) + 8);
    std::int64_t *const end = indices + count;
    for (std::int64_t start = 0; start < part.size; start += block) {
        const std::int64_t n = std::min(block, part.size - start);
        mark_block(static_cast<const Bits *>(part.data) + start, n, absolute, &left, kernels, mask.data());
        std::memset(mask.data() + n, 0, 8);
        for (std::int64_t i = 0; i < n; i += 8) {
            std::uint64_t word;
            std::memcpy(&word, mask.data() + i, 8);
            if (word == 0) continue;
            for (std::int64_t k = i; k < i + 8; ++k)
                if (mask[std::size_t(k)] && indices < end) *indices++ = start + k;
        }
    }
    assert(indices == end);
}

// Banks wider than the networks: one selection for each.
template <typename Bits>
void large_bank(const Bits *data, std::int64_t n, bool absolute, std::int64_t drop, const Kernels &kernels,
                std::vector<std::int32_t> &keys, std::uint8_t *mask, Tally *tally) {
    keys.resize(std::size_t(n));
    for (std::int64_t i = 0; i < n; ++i) {
        keys[std::size_t(i)] = key_of(data[i], absolute);
        tally->largest = std::max(tally->largest, key_of(data[i], true));
    }
    Threshold left = drop ? select_from(keys, drop) : Threshold{lowest, 0};
    mark_block(data, n, absolute, &left, kernels, mask);
}

template <typename Bits>
void equal_banks(const Bits *data, std::int64_t rows, std::int64_t whole, std::int64_t stride, bool absolute, int bank,
                 const std::int32_t *drops, const Kernels &kernels, std::uint8_t *mask, Tally *tally) {
    const BlockKernels<Bits> &kernel = table<Bits>(kernels);
    const bool narrow = bank == 4 || bank == 8 || bank == 16;
    if (narrow && stride == whole * bank) {
        kernel.narrow_banks(data, std::size_t(rows * stride), absolute, bank, drops, std::size_t(whole), mask, tally);
    } else if (narrow && whole >= 16) {
        for (std::int64_t row = 0; row < rows; ++row)
            kernel.narrow_banks(data + row * stride, std::size_t(whole * bank), absolute, bank, drops,
                                std::size_t(whole), mask + row * stride, tally);
    } else if (bank <= widest_network) {
        kernel.wide_banks(data, std::size_t(rows), std::size_t(whole), std::size_t(stride), absolute, bank, drops, mask,
                          tally);
    } else {
        std::vector<std::int32_t> keys;
        for (std::int64_t row = 0; row < rows; ++row)
            for (std::int64_t b = 0; b < whole; ++b)
                large_bank(data + row * stride + b * bank, bank, absolute, drops[b], kernels, keys,
                           mask + row * stride + b * bank, tally);
    }
}

template <typename Bits>
bool banks_of(const Bits *data, std::int64_t rows, std::int64_t columns, Order order, int bank,
              const std::int32_t *drops, const Kernels &kernels, std::uint8_t *mask) {
    Tally tally;
    const std::int64_t whole = columns / bank, rest = columns % bank;
    if (whole) equal_banks(data, rows, whole, columns, order.absolute, bank, drops, kernels, mask, &tally);
    if (rest)
        equal_banks(data + whole * bank, rows, 1, columns, order.absolute, int(rest), drops + whole, kernels,
                    mask + whole * bank, &tally);
    return tally.largest <= order.infinity;
}

}  // namespace

bool find_threshold(const std::vector<Part> &parts, Order order, std::int64_t count, const Kernels &kernels,
                    Threshold *found) {
    return order.half ? threshold_of<std::int16_t>(parts, order, count, kernels, found)
                      : threshold_of<std::int32_t>(parts, order, count, kernels, found);
}

void write_mask(const std::vector<Part> &parts, const std::vector<std::uint8_t *> &masks, Order order,
                Threshold threshold, const Kernels &kernels) {
    for (std::size_t p = 0; p < parts.size(); ++p) prefer_large_pages(masks[p], parts[p].size);
    order.half ? mask_of<std::int16_t>(parts, masks, order.absolute, threshold, kernels)
               : mask_of<std::int32_t>(parts, masks, order.absolute, threshold, kernels);
}

void write_indices(Part part, Order order, Threshold threshold, std::int64_t count, const Kernels &kernels,
                   std::int64_t *indices) {
    order.half ? indices_of<std::int16_t>(part, order.absolute, threshold, count, kernels, indices)
               : indices_of<std::int32_t>(part, order.absolute, threshold, count, kernels, indices);
}

bool write_banks(const void *data, std::int64_t rows, std::int64_t columns, Order order, int bank,
                 const std::vector<std::int32_t> &drops, const Kernels &kernels, std::uint8_t *mask) {
    prefer_large_pages(mask, rows * columns);
    return order.half ? banks_of(static_cast<const std::int16_t *>(data), rows, columns, order, bank, drops.data(),
                                 kernels, mask)
                      : banks_of(static_cast<const std::int32_t *>(data), rows, columns, order, bank, drops.data(),
                                 kernels, mask);
}

}  // namespace prunus::selection
