// What the checks of the kernels share: random numbers, packed matrices and comparisons.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "pack.h"

namespace {

using namespace prunus::kernels;

std::mt19937_64 engine(7);

int64_t draw(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(engine); }
float normal() { return std::normal_distribution<float>()(engine); }

// Exactly as large as asked for, so that a read past the end is seen.
struct Floats {
    std::unique_ptr<float[]> at;
    int64_t size;
    explicit Floats(int64_t n) : at(new float[size_t(n)]), size(n) {
        for (int64_t i = 0; i < n; ++i) at[size_t(i)] = normal();
    }
};

struct Matrix {
    std::vector<float> dense, values, scale;
    std::vector<uint16_t> half;
    std::vector<int8_t> byte;
    std::vector<uint8_t> index;
    Plan plan;
    Packed packed;

    // `used`: columns, or entries, that may hold a weight; null for all. `quads`: a mask as 2:4 and 1:4 are, of any density.
    Matrix(int64_t rows, int64_t cols, int64_t bank, double density, Values kind,
           const std::vector<bool> *used = nullptr, bool quads = false)
        : dense(size_t(rows * cols)) {
        if (quads) keep_in_quads(rows);
        for (size_t i = 0; i < dense.size() && !quads; ++i)
            if (std::uniform_real_distribution<double>()(engine) < density && (!used || (*used)[i % used->size()]))
                dense[i] = normal();
        pack_dense(rows, cols, bank, kind);
    }

    // Zero to four weights of each four neighbouring columns, equally many in every row, at different places.
    void keep_in_quads(int64_t rows) {
        const int64_t cols = int64_t(dense.size()) / rows;
        for (int64_t c = 0; c < cols; c += 4) {
            const int64_t width = std::min<int64_t>(4, cols - c), kept = draw(0, width);
            for (int64_t r = 0; r < rows; ++r) {
                float *four = dense.data() + r * cols + c;
                for (int64_t i = 0; i < kept; ++i) four[i] = normal();
                std::shuffle(four, four + width, engine);
            }
        }
    }

    void pack_dense(int64_t rows, int64_t cols, int64_t bank, Values kind) {
        plan = plan_packing(dense.data(), rows, cols, bank);
        values.resize(size_t(plan.slot_start.back() * lanes));
        index.resize(size_t(plan.packet_start.back() * lanes));
        fill_packing(plan, dense.data(), values.data(), index.data());
        const void *data = values.data();
        if (kind == Values::bf16) {
            for (float v : values) {
                uint32_t bits;
                std::memcpy(&bits, &v, 4);
                half.push_back(uint16_t(bits >> 16));
            }
            data = half.data();
        } else if (kind == Values::i8) {
            for (float v : values) byte.push_back(int8_t(std::lround(std::fmax(-127.0f, std::fmin(127.0f, v * 30)))));
            data = byte.data();
            for (int64_t r = 0; r < rows; ++r) scale.push_back(0.01f * float(1 + r % 7));
        }
        packed = {rows,
                  cols,
                  bank,
                  (rows + lanes - 1) / lanes,
                  kind,
                  data,
                  index.data(),
                  plan.schedule.data(),
                  plan.schedule_start.data(),
                  plan.slot_start.data(),
                  plan.packet_start.data()};
        if (const char *wrong =
                verify(packed, int64_t(plan.schedule.size()), plan.slot_start.back(), plan.packet_start.back())) {
            std::printf("inconsistent packing: %s\n", wrong);
            std::exit(1);
        }
        std::fill(dense.begin(), dense.end(), 0.0f);
        unpack(packed, scale.empty() ? nullptr : scale.data(), dense.data());
    }
    const float *scales() const { return scale.empty() ? nullptr : scale.data(); }
};

void compare(const char *what, const char *level, double found, double exact, double size) {
    if (std::fabs(found - exact) <= 1e-5 * size + 1e-30) return;
    std::printf("%s on %s: %.9g instead of %.9g (size %.3g)\n", what, level, found, exact, size);
    std::exit(1);
}

}  // namespace
