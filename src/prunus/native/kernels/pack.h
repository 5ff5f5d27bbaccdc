// From a dense matrix with zeros to the packed layout, and the check that packed arrays are consistent.
#pragma once

#include <cstdint>
#include <vector>

#include "format.h"

namespace prunus {
namespace kernels {

struct Plan {
    int64_t rows = 0, cols = 0, bank = 16;
    std::vector<int32_t> schedule;
    std::vector<int64_t> schedule_start, slot_start, packet_start;
    int64_t kept = 0;
    bool finite = true;
};

Plan plan_packing(const float *weight, int64_t rows, int64_t cols, int64_t bank);

// values: slots x 16 floats, index: packets x 16 bytes, both zeroed by the caller.
void fill_packing(const Plan &, const float *weight, float *values, uint8_t *index);

// The dense matrix back: out (rows x cols) zeroed by the caller.
void unpack(const Packed &, const float *scale, float *out);

// Null where everything is consistent, otherwise what is wrong.
const char *verify(const Packed &, int64_t schedule_size, int64_t slots, int64_t packets);

}  // namespace kernels
}  // namespace prunus
