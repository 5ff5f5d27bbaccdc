// Bindings: nothing of torch inside. `linear_on` and `conv_on` look at tensors themselves; everything else takes addresses
// and sizes, and the Python side has checked types, shapes and contiguity.
#include <algorithm>
#include <utility>
#include <vector>

#include "binding.h"
#include "program.h"

using namespace prunus::kernels;

namespace {

struct Packing {
    Plan plan;
    const float *weight;

    Packing(uintptr_t address, int64_t rows, int64_t cols, int64_t bank) : weight(at<const float>(address)) {
        nb::gil_scoped_release release;
        plan = plan_packing(weight, rows, cols, bank);
    }

    void fill(uintptr_t values, uintptr_t index, uintptr_t schedule, uintptr_t starts) const {
        nb::gil_scoped_release release;
        std::copy(plan.schedule.begin(), plan.schedule.end(), at<int32_t>(schedule));
        int64_t *out = at<int64_t>(starts);
        out = std::copy(plan.schedule_start.begin(), plan.schedule_start.end(), out);
        out = std::copy(plan.slot_start.begin(), plan.slot_start.end(), out);
        std::copy(plan.packet_start.begin(), plan.packet_start.end(), out);
        fill_packing(plan, weight, at<float>(values), at<uint8_t>(index));
    }
};

// Steps are added once for images of one size; the memory that layers and biases lie in must outlive the program.
struct Steps {
    Program program;
    SingleRun single;

    Steps(int64_t memory, std::vector<int64_t> sizes) : program(level(), memory, std::move(sizes)) {}

    void add_conv(const Layer &layer, uintptr_t bias, bool relu, float cap, Size size, uintptr_t sizes, Place in,
                  Place out, const Place *other) {
        Conv c = conv_of(1, size.channels, size.height, size.width, sizes);
        c.in = in.layout, c.out = out.layout;
        if (other) c.other = other->layout;
        program.conv(layer.p, c, {at<const float>(bias), layer.scale, nullptr, relu, cap}, in, out, other);
    }

    void run(int64_t batch, const std::vector<uintptr_t> &tensors, int threads) const {
        std::vector<float *> addresses;
        for (uintptr_t tensor : tensors) addresses.push_back(at<float>(tensor));
        nb::gil_scoped_release release;
        program.run(batch, addresses, threads);
    }

    // Both tensors that it takes, where these are one input and one result.
    void between(const Size &in, const Size &out) {
        single.in[0] = in.channels, single.in[1] = in.height, single.in[2] = in.width;
        single.out[0] = out.channels, single.out[1] = out.height, single.out[2] = out.width;
    }

    nb::object run_on(nb::handle x, nb::handle other, int threads) const {
        return single(x, other, [&](int64_t batch, const std::vector<float *> &tensors) {
            program.run(batch, tensors, threads);
        });
    }
};

}  // namespace

NB_MODULE(_kernels, m) {
    nb::set_leak_warnings(false);  // objects kept by caches live until the process ends
    m.def("level", [] { return level().name; });
    m.def("use", &use);
    // The type of tensors, if it carries the exchange table: `linear_on` reads them then.
    m.def("exchange", [](nb::handle type) {
        if (!nb::hasattr(type, "__dlpack_c_exchange_api__")) return;
        const nb::object capsule = type.attr("__dlpack_c_exchange_api__");
        void *table = PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api");
        if (!table) throw nb::python_error();
        const auto *found = static_cast<const prunus::exchange::Table *>(table);
        if (found->version.major == 1 && found->view && found->allocate && found->to_object)
            tensors = found, tensor_type = type.ptr();
    });
    bind_integer_programs(m);
    m.def("integers", [] { return integers().name; });
    m.def("width", [] { return level().width; });
    m.def("read", [](uintptr_t from, int64_t count) {
        nb::gil_scoped_release release;
        return level().read(at<const float>(from), count);
    });
    m.def("multiply", [](int64_t count) {
        nb::gil_scoped_release release;
        return level().multiply(count);
    });
    nb::class_<Layout>(m, "Layout").def("__init__", [](Layout *self, int64_t pad, int64_t pitch, int64_t plane) {
        new (self) Layout{pad, pitch, plane};
    });
    nb::class_<Size>(m, "Size").def("__init__", [](Size *self, int64_t channels, int64_t height, int64_t width) {
        new (self) Size{channels, height, width};
    });
    nb::class_<Place>(m, "Place").def("__init__", [](Place *self, int base, int64_t offset, const Layout &layout) {
        new (self) Place{base, offset, layout};
    });
    nb::class_<Layer>(m, "Layer")
        .def(nb::init<int64_t, int64_t, int64_t, int, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t>())
        .def("linear", &Layer::linear_to, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
             nb::arg(), nb::arg("low") = 1.0f, nb::arg("high") = -1.0f)
        .def("linear_on", &Layer::linear_on, nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg(),
             nb::arg("low") = 1.0f, nb::arg("high") = -1.0f)
        .def("conv", &Layer::conv_to)
        .def("conv_on", &Layer::conv_on, nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg(),
             nb::arg(), nb::arg())
        .def("permutes", [](const Layer &layer, int64_t batch) { return permutes(level(), layer.p, batch); })
        .def("dense", &Layer::dense_to)
        .def("problem", &Layer::problem);
    bind_block(m);
    nb::class_<Packing>(m, "Packing")
        .def(nb::init<uintptr_t, int64_t, int64_t, int64_t>())
        .def_prop_ro("schedule", [](const Packing &p) { return p.plan.schedule.size(); })
        .def_prop_ro("slots", [](const Packing &p) { return p.plan.slot_start.back(); })
        .def_prop_ro("packets", [](const Packing &p) { return p.plan.packet_start.back(); })
        .def_prop_ro("kept", [](const Packing &p) { return p.plan.kept; })
        .def_prop_ro("finite", [](const Packing &p) { return p.plan.finite; })
        .def("fill", &Packing::fill);
    nb::class_<Steps>(m, "Program")
        .def(nb::init<int64_t, std::vector<int64_t>>())
        .def("conv", &Steps::add_conv, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
             nb::arg(), nb::arg().none())
        .def("thin", [](Steps &s, Size size, int64_t step_y, int64_t step_x, int64_t before, int64_t after, Place in,
                        Place out) { s.program.thin(size, step_y, step_x, before, after, in, out); })
        .def("max_pool",
             [](Steps &s, Size size, int64_t kernel_y, int64_t kernel_x, int64_t stride_y, int64_t stride_x, Place in,
                Place out) { s.program.max_pool(size, kernel_y, kernel_x, stride_y, stride_x, in, out); })
        .def("run", &Steps::run)
        .def("between", &Steps::between)
        .def("run_on", &Steps::run_on, nb::arg(), nb::arg().none(), nb::arg());
}
