// Exact selection on integer keys: what the instruction sets implement and what the module calls.
//
// The bits of a float, read as sign and magnitude, make an integer key with the order of the numbers: the magnitude,
// negated where the sign is set. -0.0 and 0.0 get the same key 0, NaN a magnitude above that of infinity. The same holds
// for float16 and bfloat16, so half precision is compared without conversion, as widened 16-bit integers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dispatch.h"

namespace prunus::selection {

// Below every key, and still one above the smallest integer, so that "greater than lowest - 1" holds for all keys.
constexpr std::int32_t lowest = -0x7fffffff;

struct Tally {
    std::int64_t under = 0;    // keys below the bracket
    std::int64_t equal = 0;    // keys equal to the threshold
    std::int32_t largest = 0;  // largest magnitude seen: above infinity where a NaN was
};

// One block of up to a few thousand scores at a time.
template <typename Bits>
struct BlockKernels {
    // Appends the keys from low to high to `found` (room for n), tallies those below; returns the end of `found`.
    std::int32_t *(*scan)(const Bits *data, std::size_t n, bool absolute, std::int32_t low, std::int32_t high,
                          std::int32_t *found, Tally *tally);
    // Tallies keys below and equal to the threshold.
    void (*count)(const Bits *data, std::size_t n, bool absolute, std::int32_t threshold, Tally *tally);
    // out = key > threshold; tallies equal keys.
    void (*mark)(const Bits *data, std::size_t n, bool absolute, std::int32_t threshold, std::uint8_t *out,
                 Tally *tally);
    // n scores in consecutive banks of 4, 8 or 16; bank number b of the run loses drops[(first + b) % period].
    void (*narrow_banks)(const Bits *data, std::size_t n, bool absolute, int bank, const std::int32_t *drops,
                         std::size_t period, std::uint8_t *out, Tally *tally);
    // Rows of `whole` banks of 2 to 64 columns, `stride` scores apart; bank b of each row loses drops[b].
    void (*wide_banks)(const Bits *data, std::size_t rows, std::size_t whole, std::size_t stride, bool absolute,
                       int bank, const std::int32_t *drops, std::uint8_t *out, Tally *tally);
};

constexpr int widest_network = 64;

struct Kernels {
    BlockKernels<std::int32_t> single;
    BlockKernels<std::int16_t> half;
};

extern const Kernels portable_kernels, avx2_kernels, avx512_kernels;

}  // namespace prunus::selection
