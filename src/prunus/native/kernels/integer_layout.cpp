// How a program of integer convolutions is laid out: which way each runs, in which forms values are kept, and where.
#include <algorithm>
#include <limits>
#include <stdexcept>

#include "integer_program.h"

namespace prunus {
namespace kernels {
namespace {

constexpr double plane_cost = 8.0, turn_cost = 2.0;  // vector operations for 64 products, and to turn what they need

int64_t round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

// Pieces of one memory, used again once the step that reads them last is done.
class Pieces {
  public:
    explicit Pieces(int64_t spare) : spare_(spare) {}
    int64_t take(int64_t bytes, int first, int last) {
        bytes = round_up(bytes + spare_, 64);
        for (Piece &piece : pieces_)
            if (piece.until < first) {
                piece.until = last, piece.size = std::max(piece.size, bytes);
                return number(piece);
            }
        pieces_.push_back({bytes, last});
        return int64_t(pieces_.size()) - 1;
    }
    int64_t start(int64_t number) const {
        int64_t at = 0;
        for (int64_t i = 0; i < number; ++i) at += pieces_[size_t(i)].size;
        return at;
    }
    int64_t size() const { return start(int64_t(pieces_.size())); }

  private:
    struct Piece {
        int64_t size;
        int until;
    };
    const int64_t spare_;
    std::vector<Piece> pieces_;
    int64_t number(const Piece &piece) const { return &piece - pieces_.data(); }
};

}  // namespace

// Pixels in the lanes, or rows of the matrix: whichever needs fewer operations, but rows wherever a run has layers that
// need it turned. Rows only where banks are whole.
void IntegerProgram::choose_way(Layer &layer) {
    const Conv &c = layer.c;
    const IntegerMatrix &m = *layer.matrix;
    const int64_t pixels = c.out_height() * c.out_width(), uneven = c.more_y + c.more_x;
    double by_rows = 0.0;
    for (const IntegerGroup &g : m.groups) by_rows += 24.0 * g.full + 8.0 * g.quads + 10.0 * g.pairs + 14.0 * g.crossed;
    const double all = double(m.count) * plane_cost, lanes_used = double(round_up(pixels, integers_.pixels));
    Turned form;
    form.make_room(c, layer.bank);
    const bool large = form.size() > std::numeric_limits<int32_t>::max();  // for its places
    const bool fewer = all * lanes_used > (by_rows + double(m.count) * turn_cost) * double(pixels);
    if (c.channels >= layer.bank && !large && (turned_ || fewer || uneven)) {
        layer.way = Way::tokens;
        return;
    }
    if (uneven) throw std::invalid_argument("a convolution of planes of bytes pads both sides alike");
    layer.rows = std::make_shared<const PlaneRows>(integers_, m, c, layer.bank);
    spare_ = std::max(spare_, Shifts::around(c));
}

// In which bytes a convolution reads its input.
void IntegerProgram::find_bytes(int value) {
    Layer &layer = layers_[size_t(value)];
    const int in = values_[size_t(value)].in;
    const bool turned = layer.way != Way::planes;
    const auto same = [&](const Bytes &b) {
        const Step &one = b.grid.step, &two = layer.grid.step;
        const bool grid = layer.fixed ? !b.measured && one.step == two.step && one.zero == two.zero : b.measured;
        return b.value == in && grid && b.turned == turned;
    };
    const size_t found = size_t(std::find_if(bytes_.begin(), bytes_.end(), same) - bytes_.begin());
    if (found == bytes_.size()) {
        values_[size_t(in)].bytes.push_back(int(found));
        bytes_.push_back({in, !layer.fixed, layer.grid, turned, {}, 0});
    }
    layer.bytes = int(found);
    if (turned) bytes_[found].form.make_room(layer.c, layer.way == Way::own ? table : layer.bank);
}

// Which values are kept in floats, and how these lie.
void IntegerProgram::find_floats() {
    const auto need = [&](int number, bool turned) {
        Value &v = values_[size_t(number)];
        (turned ? v.tokens : v.planes).kept = true;
        (v.turned ? v.tokens : v.planes).kept = true;  // the other is made from it
    };
    for (size_t i = 0; i < values_.size(); ++i) {
        Value &v = values_[i];
        const bool one = v.kind == Kind::conv && v.bytes.size() == 1;
        const Bytes *only = one ? &bytes_[size_t(v.bytes[0])] : nullptr;
        v.direct = only && !only->measured && only->turned == v.turned ? v.bytes[0] : -1;
        if (v.kind != Kind::conv || v.tensor >= 0) need(int(i), v.turned);
        for (int which : v.bytes)
            if (which != v.direct) need(int(i), v.turned && bytes_[size_t(which)].turned);
        if (v.kind == Kind::float_conv) need(v.in, false);
        if (v.kind == Kind::thin || v.kind == Kind::max_pool) need(v.in, v.turned);
        if (v.other >= 0) need(v.other, v.kind == Kind::conv && v.turned);
    }
}

void IntegerProgram::lay_out() {
    for (size_t i = 0; i < values_.size(); ++i) {
        Value &v = values_[i];
        if (v.kind == Kind::thin || v.kind == Kind::max_pool) v.turned = values_[size_t(v.in)].turned;
        if (v.kind != Kind::conv) continue;
        if (layers_[i].way != Way::own) choose_way(layers_[i]);
        v.turned = layers_[i].way != Way::planes;
        find_bytes(int(i));
    }
    find_floats();
    for (Layer &layer : layers_) {
        if (!layer.matrix || layer.way == Way::planes) continue;
        const Turned &form = bytes_[size_t(layer.bytes)].form;
        if (layer.way == Way::own) {
            layer.taps = layer.own->places(layer.c, form);
            continue;
        }
        const int64_t ratio = layer.bank / table;
        for (const int32_t number : layer.matrix->bank) {
            const ColumnOf from(layer.c, layer.bank, number / ratio * layer.bank);
            layer.place.push_back(int32_t(form.tap(layer.c, from.tap) + from.channel + number % ratio * table));
        }
    }
    Pieces pieces(spare_);
    std::vector<std::pair<int64_t *, int64_t>> taken;
    const auto take = [&](int64_t &at, int64_t bytes, size_t from) {
        taken.push_back({&at, pieces.take(bytes, int(from), values_[from].last)});
    };
    for (size_t i = 0; i < values_.size(); ++i) {
        Value &v = values_[i];
        const int64_t size = v.count() * int64_t(sizeof(float));
        if (v.planes.kept && v.tensor < 0) take(v.planes.at, size, i);
        if (v.tokens.kept) take(v.tokens.at, size, i);
        for (int number : v.bytes) {
            Bytes &b = bytes_[size_t(number)];
            take(b.at, b.turned ? b.form.size() : v.count(), i);
        }
    }
    for (auto &[at, number] : taken) *at = pieces.start(number);
    memory_ = pieces.size();
}

}  // namespace kernels
}  // namespace prunus
