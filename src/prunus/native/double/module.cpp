// The Python face of the convolution. Addresses and sizes come checked from prunus.operators.double.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <thread>
#include <vector>

#include "double.h"

namespace nb = nanobind;
using namespace prunus::dense;

namespace {

const Kernels &kernels_for(const std::string &name) {
    const prunus::Level level = prunus::level_named(name.c_str());
#ifdef PRUNUS_X86
    if (level == prunus::Level::avx512) return avx512_kernels;
    if (level == prunus::Level::avx2) return avx2_kernels;
#endif
    return portable_kernels;
}

// (filters, taps) to (blocks, taps, block), with zeros after the last filter.
std::vector<double> pack(const double *weights, std::int64_t filters, std::int64_t taps, int block) {
    const std::int64_t blocks = (filters + block - 1) / block;
    std::vector<double> packed(static_cast<std::size_t>(blocks * taps * block), 0.0);
    for (std::int64_t f = 0; f < filters; ++f)
        for (std::int64_t t = 0; t < taps; ++t)
            packed[static_cast<std::size_t>(((f / block) * taps + t) * block + f % block)] = weights[f * taps + t];
    return packed;
}

void convolve(std::uintptr_t x, std::uintptr_t weights, std::uintptr_t y, std::int64_t images, std::int64_t groups,
              nb::tuple sizes, int threads, const std::string &level) {
    std::int64_t n[14];
    for (int i = 0; i < 14; ++i) n[i] = nb::cast<std::int64_t>(sizes[static_cast<std::size_t>(i)]);
    const Shape shape{n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9], n[10], n[11], n[12], n[13]};
    const Kernels &kernels = kernels_for(level);
    nb::gil_scoped_release unlocked;
    const std::int64_t taps = shape.channels * shape.kernel_y * shape.kernel_x;
    std::vector<std::vector<double>> packed;
    for (std::int64_t g = 0; g < groups; ++g)
        packed.push_back(pack(reinterpret_cast<const double *>(weights) + g * shape.filters * taps, shape.filters, taps,
                              kernels.block));
    const std::int64_t in = shape.channels * shape.height * shape.width,
                       out = shape.filters * shape.out_y * shape.out_x;
    const auto part = [&](std::int64_t from, std::int64_t to) {
        std::vector<double> space(static_cast<std::size_t>(kernels.space(shape)));
        for (std::int64_t i = from; i < to; ++i)
            for (std::int64_t g = 0; g < groups; ++g)
                kernels.run(reinterpret_cast<const double *>(x) + (i * groups + g) * in,
                            packed[static_cast<std::size_t>(g)].data(),
                            reinterpret_cast<double *>(y) + (i * groups + g) * out, shape, space.data());
    };
    if (threads > images) threads = static_cast<int>(images);
    std::vector<std::thread> others;
    for (int t = 1; t < threads; ++t) others.emplace_back(part, images * t / threads, images * (t + 1) / threads);
    part(0, threads > 1 ? images / threads : images);
    for (std::thread &other : others) other.join();
}

}  // namespace

NB_MODULE(_double, m) {
    using namespace nb::literals;
    m.doc() = "Dense 2-D convolution in double precision.";
    m.def("level", [] { return prunus::level_name(prunus::chosen_level()); });
    m.def("convolve", &convolve, "x"_a, "weights"_a, "y"_a, "images"_a, "groups"_a, "sizes"_a, "threads"_a,
          "level"_a = "");
}
