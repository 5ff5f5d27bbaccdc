#include "integer_program.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "image.h"
#include "pool.h"

namespace prunus {
namespace kernels {
namespace {

constexpr double plane_cost = 8.0, turn_cost = 2.0;  // vector operations for 64 products, and to turn what they need
constexpr int64_t spare = 64;                        // bytes behind each piece of memory that may be written or read

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

struct IntegerProgram::Image {
    uint8_t *memory;
    Step *steps;  // of each way in which a value is read, for this image
    const std::vector<float *> &tensors;
    const std::vector<int64_t> &sizes;
    int64_t n;
    // A value's floats; null where there are none.
    float *floats(const Value &v) const {
        if (v.tensor >= 0) return tensors[size_t(v.tensor)] + n * sizes[size_t(v.tensor)];
        return v.floats ? reinterpret_cast<float *>(memory + v.at) : nullptr;
    }
};

IntegerProgram::IntegerProgram(const Level &level, const IntegerLevel &integers) : level_(level), integers_(integers) {}

void IntegerProgram::add(Kind kind, int64_t channels, int64_t height, int64_t width, int in, int other) {
    const int number = int(values_.size());
    if (in >= number || other >= number || (kind != Kind::input && in < 0))
        throw std::invalid_argument("a step reads what is not there yet");
    if (channels < 1 || height < 1 || width < 1) throw std::invalid_argument("a step has no result");
    for (int read : {in, other})
        if (read >= 0) values_[size_t(read)].last = number;
    values_.push_back({kind, channels, height, width, in, other, {}, number, -1, false, 0, {}, -1});
    layers_.emplace_back();
    jobs_.emplace_back();
}

void IntegerProgram::input(int64_t channels, int64_t height, int64_t width) {
    add(Kind::input, channels, height, width, -1, -1);
    values_.back().tensor = int(values_.size()) - 1;
}

void IntegerProgram::conv(std::shared_ptr<const IntegerMatrix> matrix, int64_t bank, const Conv &c, const float *bias,
                          bool relu, float cap, const Grid *fixed, int in, int other) {
    if (c.more_y || c.more_x) throw std::invalid_argument("a convolution of bytes pads both sides alike");
    add(Kind::conv, matrix->rows, c.out_height(), c.out_width(), in, other);
    const int64_t taps = c.kernel_y * c.kernel_x;
    const Value &from = values_[size_t(in)], &to = values_.back();
    const int64_t columns = taps * (c.channels < bank ? c.channels : round_up(c.channels, bank));
    if (from.channels != c.channels || matrix->cols != columns)
        throw std::invalid_argument("a matrix does not fit its convolution");
    require_same(other, to);
    work_ += matrix->count * 64 * to.pixels();
    const auto same = [&](const Bytes &b) {
        const bool grid =
            fixed ? !b.measured && b.grid.step.step == fixed->step.step && b.grid.step.zero == fixed->step.zero
                  : b.measured;
        return b.value == in && grid;
    };
    size_t found = 0;
    while (found < bytes_.size() && !same(bytes_[found])) ++found;
    if (found == bytes_.size()) {
        values_[size_t(in)].bytes.push_back(int(found));
        bytes_.push_back({in, !fixed, fixed ? *fixed : Grid{}, 0});
    }
    layers_.back() = {std::move(matrix), c, bank, bias, relu, cap, int(found), nullptr, {}, 0, 0};
    arrange(layers_.back());
}

void IntegerProgram::require_same(int other, const Value &to) const {
    if (other < 0) return;
    const Value &v = values_[size_t(other)];
    if (v.channels != to.channels || v.height != to.height || v.width != to.width)
        throw std::invalid_argument("what is added has another shape");
}

void IntegerProgram::float_conv(const Packed &p, const Conv &c, const Finish &f, int in, int other) {
    add(Kind::float_conv, p.rows, c.out_height(), c.out_width(), in, other);
    const Value &from = values_[size_t(in)];
    if (from.channels != c.channels || from.height != c.height || from.width != c.width)
        throw std::invalid_argument("a matrix does not fit its convolution");
    require_same(other, values_.back());
    jobs_.back() = std::make_unique<ConvJob>(level_, p, c, f, nullptr);
    work_ += 4 * jobs_.back()->work();  // floats take so much longer
}

// Pixels in the lanes, or rows of the matrix: whichever needs fewer operations. Rows only where banks are whole.
void IntegerProgram::arrange(Layer &layer) {
    const Conv &c = layer.c;
    const IntegerMatrix &m = *layer.matrix;
    const int64_t taps = c.kernel_y * c.kernel_x, ratio = layer.bank / table, pixels = c.out_height() * c.out_width();
    double by_rows = 0.0;
    for (const IntegerGroup &g : m.groups) by_rows += 24.0 * g.full + 8.0 * g.quads + 10.0 * g.pairs + 14.0 * g.crossed;
    const double all = double(m.count) * plane_cost, lanes_used = double(round_up(pixels, pixels_at_once));
    layer.pitch = round_up(c.channels, layer.bank), layer.line = (c.width + 2 * c.pad_x) * layer.pitch;
    const bool large = (c.height + 2 * c.pad_y) * layer.line > std::numeric_limits<int32_t>::max();  // for its places
    if (large || c.channels < layer.bank ||
        all * lanes_used <= (by_rows + double(m.count) * turn_cost) * double(pixels)) {
        layer.rows = std::make_shared<const PlaneRows>(m, c, layer.bank);
        spare_ = std::max(spare_, Shifts::around(c));
        return;
    }
    for (const int32_t number : m.bank) {
        const int64_t tap = number / ratio % taps, block = number / ratio / taps * layer.bank + number % ratio * table;
        const int64_t y = tap / c.kernel_x * c.dilation_y, x = tap % c.kernel_x * c.dilation_x;
        layer.place.push_back(int32_t(y * layer.line + x * layer.pitch + block));
    }
}

void IntegerProgram::thin(int64_t step_y, int64_t step_x, int64_t before, int64_t after, int in) {
    const Value from = values_.at(size_t(in));
    if (step_y < 1 || step_x < 1 || before < 0 || after < 0) throw std::invalid_argument("a step cannot be thinned so");
    add(Kind::thin, from.channels + before + after, (from.height + step_y - 1) / step_y,
        (from.width + step_x - 1) / step_x, in, -1);
    std::copy_n(std::initializer_list<int64_t>{step_y, step_x, before, after}.begin(), 4, values_.back().numbers);
}

void IntegerProgram::max_pool(int64_t kernel_y, int64_t kernel_x, int64_t stride_y, int64_t stride_x, int in) {
    const Value from = values_.at(size_t(in));
    if (kernel_y < 1 || kernel_x < 1 || stride_y < 1 || stride_x < 1 || kernel_y > from.height || kernel_x > from.width)
        throw std::invalid_argument("an image cannot be pooled so");
    add(Kind::max_pool, from.channels, (from.height - kernel_y) / stride_y + 1, (from.width - kernel_x) / stride_x + 1,
        in, -1);
    std::copy_n(std::initializer_list<int64_t>{kernel_y, kernel_x, stride_y, stride_x}.begin(), 4,
                values_.back().numbers);
}

void IntegerProgram::finish(const std::vector<int> &results) {
    int tensor = 0;
    for (Value &v : values_)
        if (v.kind == Kind::input) sizes_.push_back(v.count()), v.tensor = tensor++;
    for (int result : results) {
        Value &v = values_.at(size_t(result));
        if (v.kind == Kind::input || v.tensor >= 0) throw std::invalid_argument("a value cannot be returned twice");
        v.tensor = tensor++;
        sizes_.push_back(v.count());
    }
    lay_out();
}

void IntegerProgram::shape(int value, int64_t (&out)[3]) const {
    const Value &v = values_.at(size_t(value));
    out[0] = v.channels, out[1] = v.height, out[2] = v.width;
}

void IntegerProgram::lay_out() {
    for (Value &v : values_) {
        const bool one = v.kind == Kind::conv && v.bytes.size() == 1 && !bytes_[size_t(v.bytes[0])].measured;
        v.direct = one ? v.bytes[0] : -1;
        v.floats = v.kind != Kind::conv || (v.direct < 0 && !v.bytes.empty());
    }
    for (const Value &v : values_) {
        if (v.other >= 0) values_[size_t(v.other)].floats = true;
        if (reads_floats(v)) values_[size_t(v.in)].floats = true;
    }
    Pieces pieces(spare_);
    std::vector<std::pair<int64_t *, int64_t>> taken;
    for (size_t i = 0; i < values_.size(); ++i) {
        Value &v = values_[i];
        if (v.floats && v.tensor < 0)
            taken.push_back({&v.at, pieces.take(v.count() * int64_t(sizeof(float)), int(i), v.last)});
        for (int number : v.bytes)
            taken.push_back({&bytes_[size_t(number)].at, pieces.take(v.count(), int(i), v.last)});
    }
    for (auto &[at, number] : taken) *at = pieces.start(number);
    memory_ = pieces.size();
}

// One way in which a value is read, made from its floats.
void IntegerProgram::make_bytes(Image &image, int value, int which) const {
    const Value &v = values_[size_t(value)];
    const Bytes &b = bytes_[size_t(which)];
    const float *from = image.floats(v);
    Grid grid = b.grid;
    if (b.measured) {
        Range range;
        integers_.measure(from, v.count(), range);
        grid = range.grid();
    }
    const bool finite = integers_.to_bytes(from, v.count(), grid, image.memory + b.at);
    image.steps[which] = finite ? grid.step : Step{std::numeric_limits<float>::quiet_NaN(), 0};
}

// Both ways return whether a byte was made from something that is not finite.
bool IntegerProgram::by_planes(Image &image, int value, int threads) const {
    const Value &v = values_[size_t(value)];
    const Layer &layer = layers_[size_t(value)];
    const PlaneRows &m = *layer.rows;
    const Step step = image.steps[layer.bytes];
    const uint8_t *x = image.memory + bytes_[size_t(layer.bytes)].at;
    const int64_t channels = layer.c.channels;
    const Shifts &shifts = m.shifts;
    uint8_t *copies = nullptr;
    if (shifts.copied)
        copies = static_cast<uint8_t *>(scratch(Scratch::quantised, channels * shifts.plane + pixels_at_once));
    std::atomic<bool> wild{false};
    for (int64_t top = 0; top < v.height; top += shifts.strip) {
        const int64_t cut = threads > 1 ? std::min<int64_t>(channels, 2 * threads) : 1;
        parallel(shifts.copied ? threads : 1, shifts.copied ? cut : 0, [&](int64_t part) {
            shifts.copy(integers_, layer.c, x, top, channels * part / cut, channels * (part + 1) / cut,
                        uint8_t(step.zero), copies);
        });
        const int64_t here = std::min(shifts.strip, v.height - top) * v.width, before = top * v.width;
        const int64_t tiles = (here + pixels_at_once - 1) / pixels_at_once;
        const int64_t parts = threads > 1 ? std::min(m.rows, (4 * threads + tiles - 1) / tiles) : 1;
        parallel(threads, tiles * parts, [&](int64_t task) {
            const int64_t first = task / parts * pixels_at_once, part = task % parts, row = m.rows * part / parts;
            PlaneTask t = plane_task(image, value, row, before + first);
            bool strange = false;
            t.rows = m.rows * (part + 1) / parts - row, t.pixels = int(std::min(pixels_at_once, here - first));
            t.sums = static_cast<int32_t *>(scratch(Scratch::sums, t.rows * pixels_at_once * int64_t(sizeof(int32_t))));
            t.wild = &strange;
            for (int64_t block = 0; block < m.blocks; ++block) {
                const size_t begin = size_t(block * m.rows + row);
                t.fresh = block == 0, t.last = block == m.blocks - 1;
                t.x = (copies ? copies : x) + block * m.step * shifts.plane + first;
                t.octets = m.octets.data() + m.start[begin], t.quads = m.quads.data() + begin;
                integers_.planes(t);
            }
            if (strange) wild.store(true, std::memory_order_relaxed);
        });
    }
    return wild.load();
}

// The task of the rows from `row` and the pixels from `first` on, before its weights and inputs.
PlaneTask IntegerProgram::plane_task(const Image &image, int value, int64_t row, int64_t first) const {
    const Value &v = values_[size_t(value)];
    const Layer &layer = layers_[size_t(value)];
    const int64_t at = row * v.pixels() + first;
    PlaneTask t = {};
    t.step = image.steps[layer.bytes], t.relu = layer.relu, t.cap = layer.cap;
    t.plane = v.pixels();
    t.sum = layer.rows->sum.data() + row, t.scale = layer.matrix->scale.data() + row;
    t.bias = layer.bias ? layer.bias + row : nullptr;
    t.out = image.floats(v) ? image.floats(v) + at : nullptr;
    t.other = v.other >= 0 ? image.floats(values_[size_t(v.other)]) + at : nullptr;
    t.bytes = v.direct >= 0 ? image.memory + bytes_[size_t(v.direct)].at + at : nullptr;
    t.grid = v.direct >= 0 ? &bytes_[size_t(v.direct)].grid : nullptr;
    return t;
}

bool IntegerProgram::by_tokens(Image &image, int value, int threads) const {
    const Value &v = values_[size_t(value)];
    const Layer &layer = layers_[size_t(value)];
    const Conv &c = layer.c;
    const Step &step = image.steps[layer.bytes];
    const int64_t size = (c.height + 2 * c.pad_y) * layer.line, pixels = v.pixels(), plane = c.height * c.width;
    uint8_t *x = static_cast<uint8_t *>(scratch(Scratch::quantised, size + 64));
    std::memset(x, step.zero, size_t(size));
    const uint8_t *from = image.memory + bytes_[size_t(layer.bytes)].at;
    for (int64_t p = 0; p < plane; ++p) {
        uint8_t *to = x + (p / c.width + c.pad_y) * layer.line + (p % c.width + c.pad_x) * layer.pitch;
        for (int64_t k = 0; k < c.channels; ++k) to[k] = from[k * plane + p];
    }
    float *turned = static_cast<float *>(scratch(Scratch::sums, 2 * v.count() * int64_t(sizeof(float))));
    parallel(threads, int64_t(layer.matrix->groups.size()), [&](int64_t g) {
        IntegerTask t = {};
        t.lines = v.height, t.tokens = int(v.width);
        t.x = x, t.line = c.stride_y * layer.line, t.pitch = c.stride_x * layer.pitch;
        t.step = &step, t.one_step = true;
        t.out = turned + g * lanes, t.out_token = v.channels, t.out_line = v.width * v.channels;
        layer.matrix->take(g, layer.place.data(), layer.bias, t);
        integers_.multiply(t);
    });
    float *out = image.floats(v) ? image.floats(v) : turned + v.count();
    level_.from_tile(turned, v.channels, pixels, v.channels, out, pixels);
    const float *other = v.other >= 0 ? image.floats(values_[size_t(v.other)]) : nullptr;
    for (int64_t i = 0; other && i < v.count(); ++i) out[i] += other[i];
    for (int64_t i = 0; layer.relu && i < v.count(); ++i)
        out[i] = out[i] < 0.0f ? 0.0f : out[i] > layer.cap ? layer.cap : out[i];
    if (v.direct < 0) return false;
    const Bytes &b = bytes_[size_t(v.direct)];
    return !integers_.to_bytes(out, v.count(), b.grid, image.memory + b.at);
}

void IntegerProgram::convolve(Image &image, int value, int threads) const {
    const Value &v = values_[size_t(value)];
    const Layer &layer = layers_[size_t(value)];
    threads = useful_threads(threads, layer.matrix->count * 64 * v.pixels(), integer_work);
    const bool wild = layer.rows ? by_planes(image, value, threads) : by_tokens(image, value, threads);
    if (v.direct < 0) return;
    image.steps[v.direct] =
        wild ? Step{std::numeric_limits<float>::quiet_NaN(), 0} : bytes_[size_t(v.direct)].grid.step;
}

void IntegerProgram::image(int64_t n, const std::vector<float *> &tensors, int threads) const {
    const int64_t steps = round_up(int64_t(bytes_.size() * sizeof(Step)) + spare_, 64);
    uint8_t *memory = static_cast<uint8_t *>(scratch(Scratch::program, memory_ + steps));
    Image image = {memory + steps, reinterpret_cast<Step *>(memory), tensors, sizes_, n};
    for (size_t i = 0; i < values_.size(); ++i) {
        const Value &v = values_[i];
        if (v.kind == Kind::conv) convolve(image, int(i), threads);
        if (v.kind == Kind::float_conv) {
            const float *other = v.other >= 0 ? image.floats(values_[size_t(v.other)]) : nullptr;
            jobs_[i]->image(image.floats(values_[size_t(v.in)]), other, image.floats(v), threads);
        }
        if (v.kind == Kind::thin || v.kind == Kind::max_pool) {
            const Value &from = values_[size_t(v.in)];
            (v.kind == Kind::thin ? thin_image : max_pool_image)({image.floats(from), {}, from.height, from.width},
                                                                 from.channels, v.numbers,
                                                                 {image.floats(v), {}, v.height, v.width});
        }
        for (int which : v.bytes)
            if (which != v.direct) make_bytes(image, int(i), which);
    }
}

void IntegerProgram::run(int64_t batch, const std::vector<float *> &tensors, int threads) const {
    if (tensors.size() != sizes_.size()) throw std::invalid_argument("a tensor is missing");
    parallel_images(useful_threads(threads, work_ * batch, integer_work), batch,
                    [&](int64_t n, int inside) { image(n, tensors, inside); });
}

}  // namespace kernels
}  // namespace prunus
