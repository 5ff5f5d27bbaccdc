// Selection over whole tensors: the threshold, the masks, the indices and the banks, on top of the block kernels.
#pragma once

#include <cstdint>
#include <vector>

#include "select.h"

namespace prunus::selection {

struct Part {  // one contiguous tensor
    const void *data;
    std::int64_t size;
};

struct Order {
    bool half;              // 16-bit scores instead of 32-bit ones
    bool absolute;          // magnitudes instead of values
    std::int32_t infinity;  // key of +Inf: a larger magnitude is NaN
};

// All keys below `key` go, and the first `ties` equal to it.
struct Threshold {
    std::int32_t key;
    std::int64_t ties;
};

// Each returns false where the scores contain NaN.
bool find_threshold(const std::vector<Part> &parts, Order order, std::int64_t count, const Kernels &kernels,
                    Threshold *found);
void write_mask(const std::vector<Part> &parts, const std::vector<std::uint8_t *> &masks, Order order,
                Threshold threshold, const Kernels &kernels);
void write_indices(Part part, Order order, Threshold threshold, std::int64_t count, const Kernels &kernels,
                   std::int64_t *indices);
bool write_banks(const void *data, std::int64_t rows, std::int64_t columns, Order order, int bank,
                 const std::vector<std::int32_t> &drops, const Kernels &kernels, std::uint8_t *mask);

}  // namespace prunus::selection
