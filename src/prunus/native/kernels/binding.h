// What the bindings share: the instruction set that runs, tensors seen through the exchange table, and a packed layer.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>

#include "dispatch.h"
#include "exchange.h"
#include "integer.h"
#include "pack.h"
#include "run.h"

namespace nb = nanobind;

namespace prunus {
namespace kernels {

inline const Level &level_of(prunus::Level which) {
#ifdef PRUNUS_X86
    if (which == prunus::Level::avx512) return avx512_level();
    if (which == prunus::Level::avx2) return avx2_level();
#endif
#ifdef PRUNUS_NEON
    if (which == prunus::Level::neon) return neon_level();
#endif
    return portable_level();
}

inline prunus::Level best() {
#ifdef PRUNUS_EMULATE_AVX512
    return prunus::Level::avx512;
#else
    return prunus::chosen_level();
#endif
}

inline std::atomic<const Level *> current{nullptr};

inline const Level &level() {
    const Level *found = current.load(std::memory_order_relaxed);
    if (found == nullptr) current.store(found = &level_of(best()));
    return *found;
}

// The integer kernels that go with a level. They have their own instruction sets: a processor may have the wide floats
// without the wide integers.
inline const IntegerLevel &integers_of(const Level &level) {
#ifdef PRUNUS_X86
    static const bool forced = std::getenv("PRUNUS_CPU") != nullptr;
    if (level.name == avx512_level().name && prunus::has_avx512_vnni()) return avx512_vnni_integers();
#ifdef PRUNUS_AVX_VNNI
    if (level.name == avx2_level().name && !forced && prunus::has_avx_vnni()) return avx_vnni_integers();
#endif
    if (level.name != portable_level().name) return avx2_integers();
#endif
#ifdef PRUNUS_NEON
    if (level.name != portable_level().name) return neon_integers();
#endif
    return portable_integers();
}

inline const IntegerLevel &integers() { return integers_of(level()); }

// For tests: run another instruction set than the best one. A level the processor lacks is lowered to what it has.
inline std::string use(const std::string &name) {
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

inline Conv conv_of(int64_t batch, int64_t channels, int64_t height, int64_t width, uintptr_t sizes) {
    const int64_t *s = at<const int64_t>(sizes);
    return {.batch = batch,
            .channels = channels,
            .height = height,
            .width = width,
            .kernel_y = s[0],
            .kernel_x = s[1],
            .stride_y = s[2],
            .stride_x = s[3],
            .pad_y = s[4],
            .pad_x = s[5],
            .dilation_y = s[6],
            .dilation_x = s[7],
            .in = {},
            .out = {},
            .other = {},
            .more_y = s[8],
            .more_x = s[9]};
}

inline const prunus::exchange::Table *tensors = nullptr;
inline PyObject *tensor_type = nullptr;

// Whether the object is a tensor as the kernels want it; `out` then shows what it holds.
inline bool look(nb::handle object, prunus::exchange::Tensor &out) {
    if (tensors->view(object.ptr(), &out) == 0) return out.plain();
    PyErr_Clear();
    return false;
}

// The same for tensors that no subclass of theirs has a say in.
inline bool view(nb::handle object, prunus::exchange::Tensor &out) {
    return tensors && object.type().ptr() == tensor_type && look(object, out);
}

// A bias of so many numbers, or none.
inline bool view_bias(nb::handle object, int64_t rows, const float *&out) {
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

// A run of steps on images of one size, whose only result is an image: the result for plain tensors, of which the second
// may be none; None where the caller must look closer.
struct SingleRun {
    int64_t in[3] = {}, also[3] = {}, out[3] = {};  // channels, height, width; without channels there is none

    template <typename F>
    nb::object operator()(nb::handle x, nb::handle other, const F &run) const {
        prunus::exchange::Tensor first, second;
        const bool two = also[0] > 0;
        if (out[0] == 0 || other.is_none() == two) return nb::none();
        if (!view(x, first) || first.ndim != 4 || !std::equal(in, in + 3, first.shape + 1)) return nb::none();
        std::vector<float *> tensors = {first.floats()};
        if (two) {
            if (!view(other, second) || second.ndim != 4 || second.shape[0] != first.shape[0] ||
                !std::equal(also, also + 3, second.shape + 1))
                return nb::none();
            tensors.push_back(second.floats());
        }
        int64_t shape[4] = {first.shape[0], out[0], out[1], out[2]};
        return make(first, shape, [&](float *result) {
            tensors.push_back(result);
            run(shape[0], tensors);
        });
    }
};

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
        p = {.rows = rows,
             .cols = cols,
             .bank = bank,
             .groups = groups,
             .kind = Values(kind),
             .values = at<const void>(values),
             .index = at<const uint8_t>(index),
             .schedule = at<const int32_t>(schedule),
             .schedule_start = s,
             .slot_start = s + groups,
             .packet_start = s + 2 * groups + 1};
    }

    // The weights in the order of the integer kernels, made at the first call.
    const IntegerMatrix &integer_matrix() const {
        std::call_once(once, [this] { integer = std::make_unique<const IntegerMatrix>(p, scale); });
        return *integer;
    }

    // Integer products quantise over [low, high], or where low lies above high over the range of each token.
    void run(const float *x, int64_t ldx, int64_t batch, float *y, const float *bias, bool relu, int threads,
             int choice, float low, float high) const {
        if (Choice(choice) == Choice::integer && p.kind == Values::i8) {
            const Grid grid = fixed_grid(low, high), *fixed = low > high ? nullptr : &grid;
            return integer_linear(integers(), integer_matrix(), x, ldx, batch, y, bias, relu, threads, fixed);
        }
        linear(level(), p, places, x, ldx, batch, y, {bias, scale, nullptr, relu}, threads, Choice(choice));
    }

    void linear_to(uintptr_t x, int64_t ldx, int64_t batch, uintptr_t y, uintptr_t bias, bool relu, int threads,
                   int choice, float low, float high) const {
        nb::gil_scoped_release release;
        run(at<const float>(x), ldx, batch, at<float>(y), at<const float>(bias), relu, threads, choice, low, high);
    }

    // The result for a plain tensor; None, and nothing done, where the caller must look closer.
    nb::object linear_on(nb::handle x, nb::handle bias, bool relu, int threads, int choice, float low,
                         float high) const {
        constexpr int32_t most = 8;
        prunus::exchange::Tensor in;
        const float *added;
        if (!view(x, in) || in.ndim < 1 || in.ndim > most || !view_bias(bias, p.rows, added)) return nb::none();
        const int32_t last = in.ndim - 1;
        if (in.shape[last] != p.cols) return nb::none();
        int64_t batch = 1, shape[most];
        for (int32_t i = 0; i < last; ++i) batch *= shape[i] = in.shape[i];
        shape[last] = p.rows;
        return make(in, shape,
                    [&](float *out) { run(in.floats(), p.cols, batch, out, added, relu, threads, choice, low, high); });
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
        if (!view(x, in) || in.ndim != 4 || in.shape[1] != channels || !view_bias(bias, p.rows, added))
            return nb::none();
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

// Adds the class of a transformer's block to the module.
void bind_block(nb::module_ &m);

void bind_integer_programs(nb::module_ &);

}  // namespace kernels
}  // namespace prunus
