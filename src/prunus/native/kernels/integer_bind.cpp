// Bindings of convolutions with integer products.
#include <memory>
#include <vector>

#include "binding.h"
#include "integer_program.h"

namespace prunus {
namespace kernels {
namespace {

// A packed int8 weight in the order of the integer kernels. The tensors it was made from are read here and never again.
struct IntegerWeight {
    std::shared_ptr<const IntegerMatrix> matrix;
    int64_t bank;

    IntegerWeight(int64_t rows, int64_t cols, int64_t bank, uintptr_t values, uintptr_t index, uintptr_t schedule,
                  uintptr_t starts, uintptr_t scale)
        : bank(bank) {
        const int64_t groups = (rows + lanes - 1) / lanes;
        const int64_t *s = at<const int64_t>(starts);
        const Packed p = {rows,
                          cols,
                          bank,
                          groups,
                          Values::i8,
                          at<const void>(values),
                          at<const uint8_t>(index),
                          at<const int32_t>(schedule),
                          s,
                          s + groups,
                          s + 2 * groups + 1};
        matrix = std::make_shared<const IntegerMatrix>(p, at<const float>(scale));
    }
};

struct Images {
    IntegerProgram program;
    SingleRun single;
    int64_t inputs = 0;

    Images() : program(level(), integers()) {}

    void conv(const IntegerWeight &weight, uintptr_t sizes, int64_t channels, int64_t height, int64_t width,
              uintptr_t bias, bool relu, float cap, bool fixed, float low, float high, int in, int other) {
        const Conv c = conv_of(1, channels, height, width, sizes);
        const Grid grid = fixed_grid(low, high);
        program.conv(weight.matrix, weight.bank, c, at<const float>(bias), relu, cap, fixed ? &grid : nullptr, in,
                     other);
    }

    void float_conv(const Layer &layer, uintptr_t sizes, int64_t channels, int64_t height, int64_t width,
                    uintptr_t bias, bool relu, float cap, int in, int other) {
        const Conv c = conv_of(1, channels, height, width, sizes);
        program.float_conv(layer.p, c, {at<const float>(bias), layer.scale, nullptr, relu, cap}, in, other);
    }

    void input(int64_t channels, int64_t height, int64_t width) {
        program.input(channels, height, width);
        ++inputs;
    }

    void finish(const std::vector<int> &results) {
        program.finish(results);
        if (results.size() != 1 || inputs < 1 || inputs > 2) return;
        program.shape(0, single.in), program.shape(results[0], single.out);
        if (inputs == 2) program.shape(1, single.also);
    }

    void run(int64_t batch, const std::vector<uintptr_t> &tensors, int threads) const {
        std::vector<float *> addresses;
        for (uintptr_t tensor : tensors) addresses.push_back(at<float>(tensor));
        nb::gil_scoped_release release;
        program.run(batch, addresses, threads);
    }

    nb::object run_on(nb::handle x, nb::handle other, int threads) const {
        return single(x, other, [&](int64_t batch, const std::vector<float *> &tensors) {
            program.run(batch, tensors, threads);
        });
    }
};

}  // namespace

void bind_integer_programs(nb::module_ &m) {
    nb::class_<IntegerWeight>(m, "IntegerWeight")
        .def(nb::init<int64_t, int64_t, int64_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t>());
    nb::class_<Images>(m, "IntegerProgram")
        .def(nb::init<>())
        .def("input", &Images::input)
        .def("conv", &Images::conv)
        .def("float_conv", &Images::float_conv)
        .def("thin", [](Images &i, int64_t step_y, int64_t step_x, int64_t before, int64_t after,
                        int in) { i.program.thin(step_y, step_x, before, after, in); })
        .def("max_pool", [](Images &i, int64_t kernel_y, int64_t kernel_x, int64_t stride_y, int64_t stride_x,
                            int in) { i.program.max_pool(kernel_y, kernel_x, stride_y, stride_x, in); })
        .def("finish", &Images::finish)
        .def("run", &Images::run)
        .def("run_on", &Images::run_on, nb::arg(), nb::arg().none(), nb::arg());
}

}  // namespace kernels
}  // namespace prunus
