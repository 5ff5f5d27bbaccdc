// Bindings: nothing of torch inside. `linear_on` and `conv_on` look at tensors themselves; everything else takes addresses
// and sizes, and the Python side has checked types, shapes and contiguity.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "block.h"
#include "dispatch.h"
#include "exchange.h"
#include "integer.h"
#include "pack.h"
#include "program.h"
#include "run.h"

namespace nb = nanobind;
using namespace prunus::kernels;

namespace {

const Level &level_of(prunus::Level which) {
#ifdef PRUNUS_X86
    if (which == prunus::Level::avx512) return avx512_level();
    if (which == prunus::Level::avx2) return avx2_level();
#endif
    return portable_level();
}

prunus::Level best() {
#ifdef PRUNUS_EMULATE_AVX512
    return prunus::Level::avx512;
#else
    return prunus::chosen_level();
#endif
}

std::atomic<const Level *> current{nullptr};

const Level &level() {
    const Level *found = current.load(std::memory_order_relaxed);
    if (found == nullptr) current.store(found = &level_of(best()));
    return *found;
}

// The integer kernels that go with a level. They have their own instruction sets: a processor may have the wide floats
// without the wide integers.
const IntegerLevel &integers_of(const Level &level) {
#ifdef PRUNUS_X86
    static const bool forced = std::getenv("PRUNUS_CPU") != nullptr;
    if (level.name == avx512_level().name && prunus::has_avx512_vnni()) return avx512_vnni_integers();
#ifdef PRUNUS_AVX_VNNI
    if (level.name == avx2_level().name && !forced && prunus::has_avx_vnni()) return avx_vnni_integers();
#endif
    if (level.name != portable_level().name) return avx2_integers();
#endif
    return portable_integers();
}

const IntegerLevel &integers() { return integers_of(level()); }

// For tests: run another instruction set than the best one. A level the processor lacks is lowered to what it has.
std::string use(const std::string &name) {
    prunus::Level wanted = best();
    if (name == "portable") wanted = prunus::Level::portable;
    if (name == "avx2" && wanted > prunus::Level::avx2) wanted = prunus::Level::avx2;
    current.store(&level_of(wanted));
    return level().name;
}

template <typename T>
T *at(uintptr_t address) {
    return reinterpret_cast<T *>(address);
}

Conv conv_of(int64_t batch, int64_t channels, int64_t height, int64_t width, uintptr_t sizes) {
    const int64_t *s = at<const int64_t>(sizes);
    return {batch, channels, height, width, s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], {}, {}, {}};
}

const prunus::exchange::Table *tensors = nullptr;
PyObject *tensor_type = nullptr;

// Whether the object is a tensor as the kernels want it; `out` then shows what it holds.
bool look(nb::handle object, prunus::exchange::Tensor &out) {
    if (tensors->view(object.ptr(), &out) == 0) return out.plain();
    PyErr_Clear();
    return false;
}

// The same for tensors that no subclass of theirs has a say in.
bool view(nb::handle object, prunus::exchange::Tensor &out) {
    return tensors && object.type().ptr() == tensor_type && look(object, out);
}

// A bias of so many numbers, or none.
bool view_bias(nb::handle object, int64_t rows, const float *&out) {
    prunus::exchange::Tensor bias;
    out = nullptr;
    if (object.is_none()) return true;
    if (!look(object, bias) || bias.ndim != 1 || bias.shape[0] != rows) return false;
    out = bias.floats();
    return true;
}

// A new tensor of this shape (as many sizes as `like` has), filled by `work` without the interpreter's lock; None where there is no room for it.
template <typename F>
nb::object make(const prunus::exchange::Tensor &like, int64_t *shape, const F &work) {
    using prunus::exchange::Managed;
    prunus::exchange::Tensor wanted = like;
    wanted.data = nullptr, wanted.shape = shape, wanted.strides = nullptr, wanted.byte_offset = 0;
    Managed *made = nullptr;
    if (tensors->allocate(&wanted, &made, nullptr, [](void *, const char *, const char *) {}) != 0) {
        PyErr_Clear();
        return nb::none();
    }
    struct Free {
        void operator()(Managed *m) const { m->free(m); }
    };
    std::unique_ptr<Managed, Free> held(made);
    if (!made->tensor.plain()) return nb::none();  // a mode of torch's dispatcher put something else there
    {
        nb::gil_scoped_release release;
        work(made->tensor.floats());
    }
    void *object = nullptr;
    if (tensors->to_object(held.release(), &object) != 0) throw nb::python_error();
    return nb::steal(static_cast<PyObject *>(object));
}

struct Layer {
    Packed p;
    const float *scale;  // by row, for int8 values; null otherwise
    mutable Places places;
    mutable std::once_flag once;
    mutable std::unique_ptr<const IntegerMatrix> integer;

    Layer(int64_t rows, int64_t cols, int64_t bank, int kind, uintptr_t values, uintptr_t index, uintptr_t schedule,
          uintptr_t starts, uintptr_t scale)
        : scale(at<const float>(scale)) {
        const int64_t groups = (rows + lanes - 1) / lanes;
        const int64_t *s = at<const int64_t>(starts);  // schedule, slot and packet starts in one array
        p = {rows, cols, bank, groups, Values(kind), at<const void>(values), at<const uint8_t>(index),
             at<const int32_t>(schedule), s, s + groups, s + 2 * groups + 1};
    }

    // The weights in the order of the integer kernels, made at the first call.
    const IntegerMatrix &integer_matrix() const {
        std::call_once(once, [this] { integer = std::make_unique<const IntegerMatrix>(p, scale); });
        return *integer;
    }

    void run(const float *x, int64_t ldx, int64_t batch, float *y, const float *bias, bool relu, int threads, int choice) const {
        if (Choice(choice) == Choice::integer && p.kind == Values::i8)
            return integer_linear(integers(), integer_matrix(), x, ldx, batch, y, bias, relu, threads);
        linear(level(), p, places, x, ldx, batch, y, {bias, scale, nullptr, relu}, threads, Choice(choice));
    }

    void linear_to(uintptr_t x, int64_t ldx, int64_t batch, uintptr_t y, uintptr_t bias, bool relu, int threads,
                   int choice) const {
        nb::gil_scoped_release release;
        run(at<const float>(x), ldx, batch, at<float>(y), at<const float>(bias), relu, threads, choice);
    }

    // The result for a plain tensor; None, and nothing done, where the caller must look closer.
    nb::object linear_on(nb::handle x, nb::handle bias, bool relu, int threads, int choice) const {
        constexpr int32_t most = 8;
        prunus::exchange::Tensor in;
        const float *added;
        if (!view(x, in) || in.ndim < 1 || in.ndim > most || !view_bias(bias, p.rows, added)) return nb::none();
        const int32_t last = in.ndim - 1;
        if (in.shape[last] != p.cols) return nb::none();
        int64_t batch = 1, shape[most];
        for (int32_t i = 0; i < last; ++i) batch *= shape[i] = in.shape[i];
        shape[last] = p.rows;
        return make(in, shape, [&](float *out) { run(in.floats(), p.cols, batch, out, added, relu, threads, choice); });
    }

    // `sizes`: kernel, stride, padding and dilation, each as a pair (y, x).
    void conv_to(uintptr_t x, uintptr_t y, uintptr_t bias, uintptr_t other, bool relu, int threads, int64_t batch,
                 int64_t channels, int64_t height, int64_t width, uintptr_t sizes) const {
        nb::gil_scoped_release release;
        const Conv c = conv_of(batch, channels, height, width, sizes);
        const Finish finish = {at<const float>(bias), scale, at<const float>(other), relu};
        conv(level(), p, places, c, at<const float>(x), at<float>(y), finish, threads);
    }

    // As linear_on, for images of so many channels; `other` is a tensor to add, or none.
    nb::object conv_on(nb::handle x, nb::handle bias, nb::handle other, bool relu, int threads, int64_t channels,
                       uintptr_t sizes) const {
        prunus::exchange::Tensor in, also;
        const float *added, *more = nullptr;
        if (!view(x, in) || in.ndim != 4 || in.shape[1] != channels || !view_bias(bias, p.rows, added)) return nb::none();
        const Conv c = conv_of(in.shape[0], channels, in.shape[2], in.shape[3], sizes);
        int64_t shape[4] = {c.batch, p.rows, c.out_height(), c.out_width()};
        if (shape[2] < 1 || shape[3] < 1) return nb::none();
        if (!other.is_none()) {
            if (!view(other, also) || also.ndim != 4 || !std::equal(shape, shape + 4, also.shape)) return nb::none();
            more = also.floats();
        }
        return make(in, shape, [&](float *out) {
            conv(level(), p, places, c, in.floats(), out, {added, scale, more, relu}, threads);
        });
    }

    void dense_to(uintptr_t out) const {
        nb::gil_scoped_release release;
        unpack(p, scale, at<float>(out));
    }

    std::string problem(int64_t schedule_size, int64_t slots, int64_t packets) const {
        nb::gil_scoped_release release;
        const char *found = verify(p, schedule_size, slots, packets);
        return found ? found : "";
    }
};

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

// One block of a transformer. The layers, biases and norms it was made from must outlive it.
struct BlockRun {
    Block b{};
    std::vector<nb::object> held;

    // `layers`: query, key, value, out, up, gate (or None), down; `biases` and `norms` (weight, bias, weight, bias) are
    // addresses, zero where there is none.
    BlockRun(const std::vector<nb::object> &layers, const std::vector<uintptr_t> &biases, const std::vector<bool> &integer,
             const std::vector<uintptr_t> &norms, float first_eps, float second_eps, bool rms, bool before, int activation,
             int64_t heads, int64_t key_heads, int64_t size, float scaling)
        : held(layers) {
        Product *const products[] = {&b.query, &b.key, &b.value, &b.out, &b.up, &b.gate, &b.down};
        if (layers.size() != 7 || biases.size() != 7 || integer.size() != 7 || norms.size() != 4)
            throw std::invalid_argument("a block has seven layers and two norms");
        for (size_t i = 0; i < 7; ++i) {
            if (layers[i].is_none()) continue;
            const Layer &layer = nb::cast<const Layer &>(layers[i]);
            *products[i] = {&layer.p, &layer.places, layer.scale, at<const float>(biases[i]),
                            integer[i] && layer.p.kind == Values::i8 ? &layer.integer_matrix() : nullptr};
        }
        b.first = {at<const float>(norms[0]), at<const float>(norms[1]), first_eps, rms};
        b.second = {at<const float>(norms[2]), at<const float>(norms[3]), second_eps, rms};
        b.before = before, b.activation = Activation(activation);
        b.heads = heads, b.key_heads = key_heads, b.size = size, b.scaling = scaling;
        const int64_t width = b.out.rows(), query = heads * size, key = key_heads * size, inner = b.up.rows();
        const bool fits = b.query.cols() == width && b.query.rows() == query && b.key.cols() == width && b.key.rows() == key &&
                          b.value.cols() == width && b.value.rows() == key && b.out.cols() == query && b.up.cols() == width &&
                          b.down.cols() == inner && b.down.rows() == width && heads > 0 && key_heads > 0 && size > 0 &&
                          heads % key_heads == 0 &&
                          (!b.gate.packed || (b.gate.cols() == width && b.gate.rows() == inner));
        if (!fits) throw std::invalid_argument("the layers of a block do not fit together");
    }

    Machine machine(int threads) const {
        return {level(), integers(), level().name == portable_level().name ? portable_blocks() : blocks(), threads};
    }
    static const BlockLevel &blocks() {
#ifdef PRUNUS_X86
        return avx2_blocks();
#else
        return portable_blocks();
#endif
    }

    // Whether x is batch x length x width, plain, and the mask and the rotations (or None) fit it.
    bool see(nb::handle x, nb::handle mask, nb::handle cos, nb::handle sin, int64_t keys, bool causal,
             prunus::exchange::Tensor &in, Sequence &s) const {
        if (!view(x, in) || in.ndim != 3 || in.shape[2] != b.width()) return false;
        s = {in.shape[0], in.shape[1], nullptr, nullptr, 0, nullptr, 0, 0, 0, causal};
        keys = keys < 0 ? s.length : keys;
        if (causal && keys < s.length) return false;
        const auto one_of = [](int64_t found, int64_t wanted) { return found == 1 || found == wanted; };
        prunus::exchange::Tensor found;
        if (!mask.is_none()) {
            if (!view(mask, found) || found.ndim != 4 || found.shape[3] != keys || !one_of(found.shape[0], s.batch) ||
                !one_of(found.shape[1], b.heads) || !one_of(found.shape[2], s.length))
                return false;
            s.mask = found.floats();
            s.mask_query = found.shape[2] == 1 ? 0 : keys;
            s.mask_head = found.shape[1] == 1 ? 0 : found.shape[2] * keys;
            s.mask_batch = found.shape[0] == 1 ? 0 : found.shape[1] * found.shape[2] * keys;
        }
        const nb::handle turns[] = {cos, sin};
        const float **const to[] = {&s.cos, &s.sin};
        for (int i = 0; i < 2 && !cos.is_none(); ++i) {
            if (!view(turns[i], found) || found.ndim != 3 || found.shape[1] != s.length || found.shape[2] != b.size ||
                b.size % 2 || !one_of(found.shape[0], s.batch))
                return false;
            *to[i] = found.floats();
            s.rotation = found.shape[0] == 1 ? 0 : s.length * b.size;
        }
        return true;
    }

    nb::object encode_on(nb::handle x, nb::handle mask, bool causal, int threads) const {
        prunus::exchange::Tensor in;
        Sequence s;
        if (!see(x, mask, nb::none(), nb::none(), -1, causal, in, s)) return nb::none();
        return make(in, in.shape, [&](float *out) { encode(machine(threads), b, s, in.floats(), out); });
    }

    // Queries, keys and values of x; None where the caller must look closer.
    nb::object project_on(nb::handle x, nb::handle cos, nb::handle sin, int threads) const {
        prunus::exchange::Tensor in;
        Sequence s;
        if (!see(x, nb::none(), cos, sin, -1, false, in, s)) return nb::none();
        int64_t query[4] = {s.batch, b.heads, s.length, b.size}, key[4] = {s.batch, b.key_heads, s.length, b.size};
        float *at[3] = {};
        prunus::exchange::Tensor like = in;
        like.ndim = 4;
        nb::object q = make(like, query, [&](float *out) { at[0] = out; });
        nb::object k = make(like, key, [&](float *out) { at[1] = out; });
        nb::object v = make(like, key, [&](float *out) { at[2] = out; });
        if (q.is_none() || k.is_none() || v.is_none()) return nb::none();
        {
            nb::gil_scoped_release release;
            project(machine(threads), b, s, in.floats(), at[0], at[1], at[2]);
        }
        return nb::make_tuple(q, k, v);
    }

    nb::object attend_on(nb::handle x, nb::handle q, nb::handle k, nb::handle v, nb::handle mask, bool causal, int threads) const {
        prunus::exchange::Tensor in, seen[3];
        Sequence s;
        if (!view(q, seen[0]) || !view(k, seen[1]) || !view(v, seen[2])) return nb::none();
        const int64_t heads[] = {b.heads, b.key_heads, b.key_heads};
        if (seen[1].ndim != 4 || !see(x, mask, nb::none(), nb::none(), seen[1].shape[2], causal, in, s)) return nb::none();
        for (int i = 0; i < 3; ++i) {
            const int64_t length = i ? seen[1].shape[2] : s.length, wanted[] = {s.batch, heads[i], length, b.size};
            if (seen[i].ndim != 4 || !std::equal(wanted, wanted + 4, seen[i].shape)) return nb::none();
        }
        return make(in, in.shape, [&](float *out) {
            attend(machine(threads), b, s, in.floats(), seen[0].floats(), seen[1].floats(), seen[2].floats(), seen[1].shape[2], out);
        });
    }
};

// Steps are added once for images of one size; the memory that layers and biases lie in must outlive the program.
struct Steps {
    Program program;

    Steps(int64_t memory, std::vector<int64_t> sizes) : program(level(), memory, std::move(sizes)) {}

    void add_conv(const Layer &layer, uintptr_t bias, bool relu, Size size, uintptr_t sizes, Place in,
                  Place out, const Place *other) {
        Conv c = conv_of(1, size.channels, size.height, size.width, sizes);
        c.in = in.layout, c.out = out.layout;
        if (other) c.other = other->layout;
        program.conv(layer.p, c, {at<const float>(bias), layer.scale, nullptr, relu}, in, out, other);
    }

    void run(int64_t batch, const std::vector<uintptr_t> &tensors, int threads) const {
        std::vector<float *> addresses;
        for (uintptr_t tensor : tensors) addresses.push_back(at<float>(tensor));
        nb::gil_scoped_release release;
        program.run(batch, addresses, threads);
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
        if (found->version.major == 1 && found->view && found->allocate && found->to_object) tensors = found, tensor_type = type.ptr();
    });
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
        .def("linear", &Layer::linear_to)
        .def("linear_on", &Layer::linear_on, nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg())
        .def("conv", &Layer::conv_to)
        .def("conv_on", &Layer::conv_on, nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg(),
             nb::arg(), nb::arg())
        .def("permutes", [](const Layer &layer, int64_t batch) { return permutes(level(), layer.p, batch); })
        .def("dense", &Layer::dense_to)
        .def("problem", &Layer::problem);
    nb::class_<BlockRun>(m, "Block")
        .def(nb::init<const std::vector<nb::object> &, const std::vector<uintptr_t> &, const std::vector<bool> &,
                      const std::vector<uintptr_t> &, float, float, bool, bool, int, int64_t, int64_t, int64_t, float>())
        .def("encode", &BlockRun::encode_on, nb::arg(), nb::arg().none(), nb::arg(), nb::arg())
        .def("project", &BlockRun::project_on, nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg())
        .def("attend", &BlockRun::attend_on, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg());
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
             nb::arg().none())
        .def("thin", [](Steps &s, Size size, int64_t step_y, int64_t step_x, int64_t before, int64_t after, Place in,
                        Place out) { s.program.thin(size, step_y, step_x, before, after, in, out); })
        .def("max_pool", [](Steps &s, Size size, int64_t kernel_y, int64_t kernel_x, int64_t stride_y, int64_t stride_x,
                            Place in, Place out) { s.program.max_pool(size, kernel_y, kernel_x, stride_y, stride_x, in, out); })
        .def("run", &Steps::run);
}
