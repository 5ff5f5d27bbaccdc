// The Python face of selection. Addresses and sizes come checked from prunus.select; the lock is released while working.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "algorithm.h"

namespace nb = nanobind;
using namespace prunus::selection;

namespace {

// A named level is lowered to what the processor has, as PRUNUS_CPU is; "" means the level chosen at load.
const Kernels &kernels_for(const std::string &name) {
    const prunus::Level level = prunus::level_named(name.c_str());
#ifdef PRUNUS_EMULATED_AVX512
    if (name == "avx512") return avx512_kernels;
#endif
#ifdef PRUNUS_X86
    if (level == prunus::Level::avx512) return avx512_kernels;
    if (level == prunus::Level::avx2) return avx2_kernels;
#endif
    return portable_kernels;
}

using Place = std::pair<std::uintptr_t, std::int64_t>;  // address, number of scores

std::vector<Part> parts_of(const std::vector<Place> &places) {
    std::vector<Part> parts;
    for (const Place &place : places) parts.push_back({reinterpret_cast<const void *>(place.first), place.second});
    return parts;
}

bool drop_smallest(const std::vector<Place> &scores, const std::vector<std::uintptr_t> &masks, bool absolute,
                   std::int64_t count, bool half, std::int32_t infinity, const std::string &level) {
    const Kernels &kernels = kernels_for(level);
    const std::vector<Part> parts = parts_of(scores);
    std::vector<std::uint8_t *> out;
    for (std::uintptr_t mask : masks) out.push_back(reinterpret_cast<std::uint8_t *>(mask));
    nb::gil_scoped_release unlocked;
    const Order order{half, absolute, infinity};
    Threshold threshold;
    if (!find_threshold(parts, order, count, kernels, &threshold)) return false;
    write_mask(parts, out, order, threshold, kernels);
    return true;
}

bool top_indices(Place scores, std::uintptr_t indices, bool absolute, std::int64_t count, bool half,
                 std::int32_t infinity, const std::string &level) {
    const Kernels &kernels = kernels_for(level);
    const std::vector<Part> parts = parts_of({scores});
    nb::gil_scoped_release unlocked;
    const Order order{half, absolute, infinity};
    Threshold threshold;
    if (!find_threshold(parts, order, parts[0].size - count, kernels, &threshold)) return false;
    write_indices(parts[0], order, threshold, count, kernels, reinterpret_cast<std::int64_t *>(indices));
    return true;
}

bool drop_in_banks(std::uintptr_t scores, std::int64_t rows, std::int64_t columns, std::uintptr_t mask, bool absolute,
                   int bank, const std::vector<std::int32_t> &drops, bool half, std::int32_t infinity,
                   const std::string &level) {
    const Kernels &kernels = kernels_for(level);
    nb::gil_scoped_release unlocked;
    return write_banks(reinterpret_cast<const void *>(scores), rows, columns, Order{half, absolute, infinity}, bank,
                       drops, kernels, reinterpret_cast<std::uint8_t *>(mask));
}

}  // namespace

NB_MODULE(_select, m) {
    using namespace nb::literals;
    m.doc() = "Exact selection on integer keys; every function returns False where the scores contain NaN.";
    m.def("level", [] { return prunus::level_name(prunus::chosen_level()); });
    m.def("drop_smallest", &drop_smallest, "scores"_a, "masks"_a, "absolute"_a, "count"_a, "half"_a, "infinity"_a,
          "level"_a = "");
    m.def("top_indices", &top_indices, "scores"_a, "indices"_a, "absolute"_a, "count"_a, "half"_a, "infinity"_a,
          "level"_a = "");
    m.def("drop_in_banks", &drop_in_banks, "scores"_a, "rows"_a, "columns"_a, "mask"_a, "absolute"_a, "bank"_a,
          "drops"_a, "half"_a, "infinity"_a, "level"_a = "");
}
