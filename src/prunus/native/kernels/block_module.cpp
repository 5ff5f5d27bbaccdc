// Bindings of what runs as a whole: a transformer's block, a recurrent layer.
#include <algorithm>
#include <cstring>
#include <vector>

#include "binding.h"
#include "block.h"
#include "recurrent.h"

namespace prunus {
namespace kernels {
namespace {

const BlockLevel &blocks() {
    if (level().name == portable_level().name) return portable_blocks();
#ifdef PRUNUS_X86
    return avx2_blocks();
#elif defined(PRUNUS_NEON)
    return neon_blocks();
#else
    return portable_blocks();
#endif
}

Machine machine(int threads) { return {level(), integers(), blocks(), threads}; }

// One block of a transformer. The layers, biases and norms it was made from must outlive it.
struct BlockRun {
    Block b{};
    std::vector<nb::object> held;

    // `layers`: query, key, value, out, up, gate (or None), down; `biases` and `norms` (weight, bias, weight, bias) are
    // addresses, zero where there is none.
    BlockRun(const std::vector<nb::object> &layers, const std::vector<uintptr_t> &biases,
             const std::vector<bool> &integer, const std::vector<uintptr_t> &norms, float first_eps, float second_eps,
             bool rms, bool before, int activation, int64_t heads, int64_t key_heads, int64_t size, float scaling)
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
        const bool fits = b.query.cols() == width && b.query.rows() == query && b.key.cols() == width &&
                          b.key.rows() == key && b.value.cols() == width && b.value.rows() == key &&
                          b.out.cols() == query && b.up.cols() == width && b.down.cols() == inner &&
                          b.down.rows() == width && heads > 0 && key_heads > 0 && size > 0 && heads % key_heads == 0 &&
                          (!b.gate.packed || (b.gate.cols() == width && b.gate.rows() == inner));
        if (!fits) throw std::invalid_argument("the layers of a block do not fit together");
    }

    // Whether x is batch x length x width, plain, and the mask and the rotations (or None) fit it.
    bool see(nb::handle x, nb::handle mask, nb::handle cos, nb::handle sin, int64_t keys, bool causal,
             prunus::exchange::Tensor &in, Sequence &s) const {
        if (!view(x, in) || in.ndim != 3 || in.shape[2] != b.width()) return false;
        s = {.batch = in.shape[0], .length = in.shape[1], .causal = causal};
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
            project(machine(threads), b, s, in.floats(), at[0], at[1], at[2], s.length * b.size);
        }
        return nb::make_tuple(q, k, v);
    }

    nb::object attend_on(nb::handle x, nb::handle q, nb::handle k, nb::handle v, nb::handle mask, bool causal,
                         int threads) const {
        prunus::exchange::Tensor in, seen[3];
        Sequence s;
        if (!view(q, seen[0]) || !view(k, seen[1]) || !view(v, seen[2])) return nb::none();
        const int64_t heads[] = {b.heads, b.key_heads, b.key_heads};
        if (seen[1].ndim != 4 || !see(x, mask, nb::none(), nb::none(), seen[1].shape[2], causal, in, s))
            return nb::none();
        for (int i = 0; i < 3; ++i) {
            const int64_t length = i ? seen[1].shape[2] : s.length, wanted[] = {s.batch, heads[i], length, b.size};
            if (seen[i].ndim != 4 || !std::equal(wanted, wanted + 4, seen[i].shape)) return nb::none();
        }
        return make(in, in.shape, [&](float *out) {
            attend(machine(threads), b, s, in.floats(), seen[0].floats(), seen[1].floats(), seen[2].floats(),
                   seen[1].shape[2], seen[1].shape[2] * b.size, out);
        });
    }

    // As `project` and `attend`, with keys and values behind the `filled` ones of a room (batch x key_heads x capacity x
    // size). None, and nothing written, where the caller must look closer.
    nb::object extend_on(nb::handle x, nb::handle cos, nb::handle sin, nb::handle k, nb::handle v, int64_t filled,
                         nb::handle mask, bool causal, int threads) const {
        prunus::exchange::Tensor in, keys, values;
        Sequence s;
        if (!view(k, keys) || !view(v, values) || keys.ndim != 4 || values.ndim != 4 || !view(x, in) || in.ndim != 3)
            return nb::none();
        const int64_t capacity = keys.shape[2], wanted[] = {in.shape[0], b.key_heads, capacity, b.size};
        if (!std::equal(wanted, wanted + 4, keys.shape) || !std::equal(wanted, wanted + 4, values.shape))
            return nb::none();
        if (filled < 0 || filled + in.shape[1] > capacity) return nb::none();
        if (!see(x, mask, cos, sin, filled + in.shape[1], causal, in, s)) return nb::none();
        return make(in, in.shape, [&](float *out) {
            extend(machine(threads), b, s, in.floats(), keys.floats(), values.floats(), filled, capacity, out);
        });
    }
};

// All blocks of a decoder, one after the other, with keys and values behind the `filled` ones of a room (blocks x batch x
// key_heads x capacity x size), then the last norm. None, and nothing written, where the caller must look closer.
nb::object extend_all(const std::vector<const BlockRun *> &runs, nb::handle x, nb::handle cos, nb::handle sin,
                      nb::handle k, nb::handle v, int64_t filled, nb::handle weight, float eps, int threads) {
    prunus::exchange::Tensor in, keys, values, last;
    Sequence s;
    if (runs.empty() || !view(k, keys) || !view(v, values) || keys.ndim != 5 || values.ndim != 5) return nb::none();
    if (!view(x, in) || in.ndim != 3 || !look(weight, last) || last.ndim != 1 || last.shape[0] != in.shape[2])
        return nb::none();
    const Block &first = runs[0]->b;
    const int64_t capacity = keys.shape[3];
    const int64_t wanted[] = {int64_t(runs.size()), in.shape[0], first.key_heads, capacity, first.size};
    if (!std::equal(wanted, wanted + 5, keys.shape) || !std::equal(wanted, wanted + 5, values.shape)) return nb::none();
    if (filled < 0 || filled + in.shape[1] > capacity) return nb::none();
    if (!runs[0]->see(x, nb::none(), cos, sin, filled + in.shape[1], true, in, s)) return nb::none();
    for (const BlockRun *run : runs)
        if (run->b.width() != first.width() || run->b.key_heads != first.key_heads || run->b.size != first.size)
            return nb::none();
    const int64_t tokens = s.batch * s.length, width = first.width();
    const int64_t room = in.shape[0] * first.key_heads * capacity * first.size;
    const Norm norm = {last.floats(), nullptr, eps, true};
    return make(in, in.shape, [&](float *out) {
        const Machine m = machine(threads);
        std::vector<float> between(size_t(2 * tokens * width));
        const float *from = in.floats();
        for (size_t i = 0; i < runs.size(); ++i) {
            float *to = between.data() + int64_t(i % 2) * tokens * width;
            const int64_t at = int64_t(i) * room;
            extend(m, runs[i]->b, s, from, keys.floats() + at, values.floats() + at, filled, capacity, to);
            from = to;
        }
        for (int64_t n = 0; n < tokens; ++n)
            m.blocks.normalise(norm, from + n * width, nullptr, width, nullptr, out + n * width);
    });
}

// Whether the object is a tensor of whole numbers of 64 bits, contiguous, all at least zero and below `end`.
bool view_ids(nb::handle object, int64_t end, prunus::exchange::Tensor &out) {
    if (!tensors || object.type().ptr() != tensor_type) return false;
    if (tensors->view(object.ptr(), &out) != 0) return PyErr_Clear(), false;
    if (out.device.type != 1 || out.dtype.code != 0 || out.dtype.bits != 64 || out.ndim != 2) return false;
    const int64_t count = out.shape[0] * out.shape[1], *ids = reinterpret_cast<const int64_t *>(out.floats());
    if (out.strides &&
        ((out.shape[1] != 1 && out.strides[1] != 1) || (out.shape[0] != 1 && out.strides[0] != out.shape[1])))
        return false;
    return std::all_of(ids, ids + count, [end](int64_t id) { return id >= 0 && id < end; });
}

// The embeddings of BERT and its relatives, positions from zero on; None where the caller must look closer.
nb::object embed_on(nb::handle ids, nb::handle kinds, const std::vector<nb::object> &tables, float eps, int threads) {
    prunus::exchange::Tensor table[5], in, kind;  // words, positions, kinds; the norm's weight and bias
    if (tables.size() != 5) return nb::none();
    for (size_t i = 0; i < 5; ++i)
        if (!tensors || !look(tables[i], table[i]) || table[i].ndim != (i < 3 ? 2 : 1)) return nb::none();
    const int64_t width = table[0].shape[1];
    for (int i = 1; i < 5; ++i)
        if (table[i].shape[i < 3 ? 1 : 0] != width) return nb::none();
    if (!view_ids(ids, table[0].shape[0], in) || in.shape[1] > table[1].shape[0] || table[2].shape[0] < 1)
        return nb::none();
    const bool told = !kinds.is_none();
    if (told && (!view_ids(kinds, table[2].shape[0], kind) || !std::equal(in.shape, in.shape + 2, kind.shape)))
        return nb::none();
    const Embedding e = {table[0].floats(),
                         table[1].floats(),
                         table[2].floats(),
                         width,
                         {table[3].floats(), table[4].floats(), eps, false}};
    int64_t shape[3] = {in.shape[0], in.shape[1], width};
    prunus::exchange::Tensor like = table[0];
    like.ndim = 3;
    const auto numbers = [](const prunus::exchange::Tensor &t) {
        return reinterpret_cast<const int64_t *>(t.floats());
    };
    return make(like, shape, [&](float *out) {
        embed(machine(threads), e, numbers(in), told ? numbers(kind) : nullptr, shape[0], shape[1], out);
    });
}

// What a native run was made of: the instruction set, entries of dictionaries, and dictionaries of hooks, which must be
// empty. Entries are looked up only where a dictionary was written to since (CPython 3.11 counts that). Tensors whose
// memory is read directly have their addresses compared every time, and where they are two floats, as spans are, these.
struct Watch {
    struct One {
        nb::object holder, name, value;
    };
    struct Place {
        PyObject *tensor;  // kept by its entry
        const void *address;
        bool span;
        float ends[2];
    };
    struct Stamp {
        PyObject *dictionary;
        uint64_t seen;
    };
    const Level *made_for = &level();
    std::vector<One> all;
    std::vector<Place> places;
    std::vector<nb::object> hooks;
    mutable std::vector<Stamp> stamps;

#if PY_VERSION_HEX < 0x030C0000
    static constexpr bool counted = true;
    static uint64_t count_of(PyObject *d) { return reinterpret_cast<PyDictObject *>(d)->ma_version_tag; }
#else
    static constexpr bool counted = false;
    static uint64_t count_of(PyObject *) { return 0; }
#endif

    static const float *span_of(nb::handle object) {
        prunus::exchange::Tensor found;
        return view(object, found) && found.ndim == 1 && found.shape[0] == 2 ? found.floats() : nullptr;
    }

    static const void *address_of(nb::handle object) {
        prunus::exchange::Tensor found;
        if (!tensors || !PyObject_TypeCheck(object.ptr(), reinterpret_cast<PyTypeObject *>(tensor_type)))
            return nullptr;
        if (tensors->view(object.ptr(), &found) != 0) return PyErr_Clear(), nullptr;
        return static_cast<const char *>(found.data) + found.byte_offset;
    }

    // Entries: dictionary, name, value, and whether it is a tensor whose memory is read directly.
    Watch(const std::vector<nb::tuple> &entries, const std::vector<nb::object> &hooks) : hooks(hooks) {
        for (const nb::tuple &entry : entries) {
            all.push_back({entry[0], entry[1], entry[2]});
            if (!nb::cast<bool>(entry[3])) continue;
            places.push_back({all.back().value.ptr(), address_of(entry[2]), false, {}});
            if (const float *ends = span_of(entry[2]))
                places.back().span = true, places.back().ends[0] = ends[0], places.back().ends[1] = ends[1];
        }
        for (const One &one : all) stamps.push_back({one.holder.ptr(), 0});
        for (const nb::object &one : hooks) stamps.push_back({one.ptr(), 0});
        const auto less = [](const Stamp &a, const Stamp &b) { return a.dictionary < b.dictionary; };
        const auto equal = [](const Stamp &a, const Stamp &b) { return a.dictionary == b.dictionary; };
        std::sort(stamps.begin(), stamps.end(), less);
        stamps.erase(std::unique(stamps.begin(), stamps.end(), equal), stamps.end());
    }

    bool entries_same() const {
        for (const nb::object &one : hooks)
            if (PyDict_GET_SIZE(one.ptr()) != 0) return false;
        for (const One &one : all)
            if (PyDict_GetItem(one.holder.ptr(), one.name.ptr()) != one.value.ptr()) return false;
        return true;
    }

    bool same() const {
        if (made_for != &level()) return false;
        bool untouched = counted;
        for (const Stamp &stamp : stamps) untouched &= count_of(stamp.dictionary) == stamp.seen;
        if (!untouched) {
            if (!entries_same()) return false;
            for (Stamp &stamp : stamps) stamp.seen = count_of(stamp.dictionary);
        }
        for (const Place &place : places) {
            if (address_of(place.tensor) != place.address) return false;
            const float *ends = place.span ? span_of(place.tensor) : place.ends;
            if (!ends || std::memcmp(ends, place.ends, sizeof place.ends) != 0) return false;
        }
        return true;
    }
};

// A watch may hold the very module that holds it: Python must be able to see that, to free both.
int visit_watch(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    if (!nb::inst_ready(self)) return 0;
    const Watch &watch = *nb::inst_ptr<Watch>(self);
    for (const Watch::One &one : watch.all) {
        Py_VISIT(one.holder.ptr());
        Py_VISIT(one.value.ptr());
    }
    for (const nb::object &one : watch.hooks) Py_VISIT(one.ptr());
    return 0;
}

int clear_watch(PyObject *self) {
    Watch &watch = *nb::inst_ptr<Watch>(self);
    watch.places.clear(), watch.stamps.clear();
    const std::vector<Watch::One> all = std::move(watch.all);  // emptied before anything is freed
    const std::vector<nb::object> hooks = std::move(watch.hooks);
    return 0;
}

PyType_Slot watch_slots[] = {{Py_tp_traverse, reinterpret_cast<void *>(visit_watch)},
                             {Py_tp_clear, reinterpret_cast<void *>(clear_watch)},
                             {0, nullptr}};

// One layer of an LSTM (with c) or a GRU, in one direction. h and c are changed to the last state, and the columns of `out`
// (steps x batch x at least hidden) from the first one on receive every h. False, and nothing done, where the caller
// must look closer.
bool recur_on(const Layer &inputs, nb::handle inputs_bias, const Layer &state, nb::handle state_bias, bool integer,
              bool backwards, nb::handle x, nb::handle h, nb::handle c, nb::handle out, int64_t column, int threads) {
    prunus::exchange::Tensor in, to, first, second;
    const int64_t hidden = state.p.cols;
    const bool lstm = !c.is_none();
    Recurrent r = {};
    const float *bias[2];
    if (!view(x, in) || !view(h, first) || !view(out, to) || (lstm && !view(c, second))) return false;
    if (!view_bias(inputs_bias, inputs.p.rows, bias[0]) || !view_bias(state_bias, state.p.rows, bias[1])) return false;
    if (in.ndim != 3 || to.ndim != 3 || in.shape[2] != inputs.p.cols || to.shape[0] != in.shape[0] ||
        to.shape[1] != in.shape[1])
        return false;
    const int64_t batch = in.shape[1], wanted[] = {batch, hidden};
    if (first.ndim != 2 || !std::equal(wanted, wanted + 2, first.shape) || column < 0 || column + hidden > to.shape[2])
        return false;
    if (lstm && (second.ndim != 2 || !std::equal(wanted, wanted + 2, second.shape))) return false;
    r.lstm = lstm, r.backwards = backwards;
    const Layer *const layers[] = {&inputs, &state};
    Product *const products[] = {&r.inputs, &r.state};
    for (int i = 0; i < 2; ++i) {
        const Layer &l = *layers[i];
        if (l.p.rows != r.gates() * hidden) return false;
        *products[i] = {&l.p, &l.places, l.scale, bias[i],
                        integer && l.p.kind == Values::i8 ? &l.integer_matrix() : nullptr};
    }
    nb::gil_scoped_release release;
    recur(machine(threads), r, in.floats(), in.shape[0], batch, first.floats(), lstm ? second.floats() : nullptr,
          to.floats() + column, to.shape[2]);
    return true;
}

}  // namespace

void bind_block(nb::module_ &m) {
    nb::class_<BlockRun>(m, "Block")
        .def(
            nb::init<const std::vector<nb::object> &, const std::vector<uintptr_t> &, const std::vector<bool> &,
                     const std::vector<uintptr_t> &, float, float, bool, bool, int, int64_t, int64_t, int64_t, float>())
        .def("encode", &BlockRun::encode_on, nb::arg(), nb::arg().none(), nb::arg(), nb::arg())
        .def("extend", &BlockRun::extend_on, nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg(),
             nb::arg(), nb::arg().none(), nb::arg(), nb::arg())
        .def("project", &BlockRun::project_on, nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg())
        .def("attend", &BlockRun::attend_on, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(),
             nb::arg());
    nb::class_<Watch>(m, "Watch", nb::type_slots(watch_slots))
        .def(nb::init<const std::vector<nb::tuple> &, const std::vector<nb::object> &>())
        .def("same", &Watch::same);
    m.def("extend_all", &extend_all);
    m.def("embed", &embed_on, nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg());
    m.def("recur", &recur_on, nb::arg(), nb::arg().none(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg(),
          nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg());
}

}  // namespace kernels
}  // namespace prunus
