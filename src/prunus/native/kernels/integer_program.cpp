#include "integer_program.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "pool.h"

namespace prunus {
namespace kernels {
namespace {

constexpr int64_t inputs_at_hand = 16 << 10;  // bytes that the pixels of one task read
constexpr int64_t outputs_at_hand = 64 << 10;
constexpr int64_t spare = 64;  // bytes behind each piece of memory that may be written or read

int64_t round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

inline float larger(float a, float b) { return b > a || b != b ? b : a; }  // keeps NaN, as torch does

void thin_floats(const float *from, int64_t width, int64_t channels, const int64_t *m, float *to, int64_t out_h,
                 int64_t out_w) {
    const int64_t all = m[2] + channels + m[3];
    for (int64_t y = 0; y < out_h; ++y)
        for (int64_t x = 0; x < out_w; ++x, to += all) {
            const float *in = from + (y * m[0] * width + x * m[1]) * channels;
            std::fill(to, to + m[2], 0.0f);
            std::copy(in, in + channels, to + m[2]);
            std::fill(to + m[2] + channels, to + all, 0.0f);
        }
}

// Columns first, then rows: the order of torch, which matters only for which NaN is kept.
void pool_floats(const float *from, int64_t width, int64_t channels, const int64_t *m, float *to, int64_t out_h,
                 int64_t out_w) {
    for (int64_t y = 0; y < out_h; ++y)
        for (int64_t x = 0; x < out_w; ++x, to += channels) {
            const float *in = from + (y * m[2] * width + x * m[3]) * channels;
            std::copy(in, in + channels, to);
            for (int64_t i = 0; i < m[0]; ++i)
                for (int64_t j = 0; j < m[1]; ++j) {
                    const float *at = in + (i * width + j) * channels;
                    for (int64_t c = 0; c < channels; ++c) to[c] = larger(to[c], at[c]);
                }
        }
}

// Pieces of one memory, used again once the step that reads them last is done.
class Pieces {
  public:
    int64_t take(int64_t bytes, int first, int last) {
        bytes = round_up(bytes + spare, 64);
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
    float *tensor(int number) const { return tensors[size_t(number)] + n * sizes[size_t(number)]; }
    float *floats(const Value &v) const { return reinterpret_cast<float *>(memory + v.at); }
};

IntegerProgram::IntegerProgram(const Level &level, const IntegerLevel &integers) : level_(level), integers_(integers) {}

int64_t IntegerProgram::count(int value) const {
    const Value &v = values_[size_t(value)];
    return v.channels * v.height * v.width;
}

void IntegerProgram::add(Kind kind, int64_t channels, int64_t height, int64_t width, int in, int other) {
    const int number = int(values_.size());
    if (in >= number || other >= number || (kind != Kind::input && in < 0))
        throw std::invalid_argument("a step reads what is not there yet");
    if (channels < 1 || height < 1 || width < 1) throw std::invalid_argument("a step has no result");
    for (int read : {in, other})
        if (read >= 0) values_[size_t(read)].last = number;
    values_.push_back({kind, channels, height, width, in, other, {}, number, -1, false, 0, {}, -1});
    layers_.emplace_back();
}

void IntegerProgram::input(int64_t channels, int64_t height, int64_t width) {
    add(Kind::input, channels, height, width, -1, -1);
    values_.back().tensor = int(values_.size()) - 1;
}

void IntegerProgram::conv(std::shared_ptr<const IntegerMatrix> matrix, int64_t bank, const Conv &c, const float *bias,
                          bool relu, const Grid *fixed, int in, int other) {
    add(Kind::conv, matrix->rows, c.out_height(), c.out_width(), in, other);
    const int64_t taps = c.kernel_y * c.kernel_x;
    Layer layer = {matrix, c, bank, bias, relu, c.channels < bank, 0, {}, round_up(taps * c.channels, table)};
    const Value &from = values_[size_t(in)], &to = values_.back();
    const int64_t columns = layer.gathered ? taps * c.channels : taps * round_up(c.channels, bank);
    if (from.channels != c.channels || matrix->cols != columns)
        throw std::invalid_argument("a matrix does not fit its convolution");
    if (other >= 0 && (values_[size_t(other)].channels != to.channels || values_[size_t(other)].height != to.height ||
                       values_[size_t(other)].width != to.width))
        throw std::invalid_argument("what is added has another shape");
    work_ += matrix->count * 64 * to.height * to.width;
    const int64_t pitch = layer.gathered ? c.channels : round_up(c.channels, bank);
    const auto same = [&](const Bytes &b) {
        const bool grid =
            fixed ? !b.measured && b.grid.step.step == fixed->step.step && b.grid.step.zero == fixed->step.zero
                  : b.measured;
        return b.value == in && grid && b.tight == layer.gathered;
    };
    size_t found = 0;
    while (found < bytes_.size() && !same(bytes_[found])) ++found;
    if (found == bytes_.size()) {
        values_[size_t(in)].bytes.push_back(int(found));
        bytes_.push_back({in, !fixed, layer.gathered, fixed ? *fixed : Grid{}, pitch, c.pad_y, c.pad_x});
    }
    Bytes &read = bytes_[found];
    read.pitch = std::max(read.pitch, pitch), read.halo_y = std::max(read.halo_y, c.pad_y),
    read.halo_x = std::max(read.halo_x, c.pad_x);
    layer.bytes = int(found);
    layers_.back() = std::move(layer);
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
        if (v.kind == Kind::input) sizes_.push_back(v.channels * v.height * v.width), v.tensor = tensor++;
    for (int result : results) {
        Value &v = values_.at(size_t(result));
        if (v.kind == Kind::input || v.tensor >= 0) throw std::invalid_argument("a value cannot be returned twice");
        v.tensor = tensor++;
        sizes_.push_back(count(result));
    }
    lay_out();
}

void IntegerProgram::shape(int value, int64_t (&out)[3]) const {
    const Value &v = values_.at(size_t(value));
    out[0] = v.channels, out[1] = v.height, out[2] = v.width;
}

void IntegerProgram::lay_out() {
    for (size_t i = 0; i < values_.size(); ++i) {
        Value &v = values_[i];
        const bool one = v.kind == Kind::conv && v.bytes.size() == 1;
        const Bytes *only = one ? &bytes_[size_t(v.bytes[0])] : nullptr;
        v.direct = only && !only->measured && !only->tight ? v.bytes[0] : -1;
        // Inputs are read as planes by what quantises them; everything else wants floats with channels side by side.
        v.floats = v.kind != Kind::input && v.direct < 0 && !v.bytes.empty();
        v.floats |= v.kind == Kind::thin || v.kind == Kind::max_pool;
    }
    for (const Value &v : values_) {
        if (v.other >= 0) values_[size_t(v.other)].floats = true;
        if (v.kind == Kind::thin || v.kind == Kind::max_pool) values_[size_t(v.in)].floats = true;
    }
    for (Layer &layer : layers_) {
        if (!layer.matrix) continue;
        Bytes &b = bytes_[size_t(layer.bytes)];
        const Value &v = values_[size_t(b.value)];
        b.line = (v.width + 2 * b.halo_x) * b.pitch, b.size = (v.height + 2 * b.halo_y) * b.line;
        if (b.size > std::numeric_limits<int32_t>::max()) throw std::invalid_argument("an image is too large");
    }
    for (Layer &layer : layers_) {
        if (!layer.matrix) continue;
        const Bytes &b = bytes_[size_t(layer.bytes)];
        const Conv &c = layer.c;
        const int64_t taps = c.kernel_y * c.kernel_x, ratio = layer.bank / table;
        for (const int32_t number : layer.matrix->bank) {
            const int64_t tap = number / ratio % taps,
                          block = number / ratio / taps * layer.bank + number % ratio * table;
            const int64_t at =
                tap / c.kernel_x * c.dilation_y * b.line + tap % c.kernel_x * c.dilation_x * b.pitch + block;
            layer.place.push_back(layer.gathered ? number * int32_t(table) : int32_t(at));
        }
    }
    Pieces pieces;
    std::vector<std::pair<int64_t *, int64_t>> taken;
    for (size_t i = 0; i < values_.size(); ++i) {
        Value &v = values_[i];
        if (v.floats) taken.push_back({&v.at, pieces.take(count(int(i)) * int64_t(sizeof(float)), int(i), v.last)});
        for (int number : v.bytes) {
            Bytes &b = bytes_[size_t(number)];
            taken.push_back({&b.at, pieces.take(b.size, int(i), v.last)});
        }
    }
    for (auto &[at, number] : taken) *at = pieces.start(number);
    memory_ = pieces.size();
}

// The byte for zero all around an image.
void IntegerProgram::around(const Bytes &b, uint8_t zero, uint8_t *at) const {
    if (b.halo_y == 0 && b.halo_x == 0) return;
    const Value &v = values_[size_t(b.value)];
    const int64_t ends = b.halo_y * b.line, side = b.halo_x * b.pitch;
    std::memset(at, zero, size_t(ends));
    for (int64_t y = 0; y < v.height; ++y) {
        uint8_t *line = at + ends + y * b.line;
        std::memset(line, zero, size_t(side));
        std::memset(line + b.line - side, zero, size_t(side));
    }
    std::memset(at + ends + v.height * b.line, zero, size_t(ends));
}

// One way in which a value is read, made from its floats (of an input: from its planes).
void IntegerProgram::make_bytes(Image &image, int value, int which) const {
    const Value &v = values_[size_t(value)];
    const Bytes &b = bytes_[size_t(which)];
    uint8_t *at = image.memory + b.at, *first = at + b.halo_y * b.line + b.halo_x * b.pitch;
    const bool planes = v.kind == Kind::input;
    const float *from = planes ? image.tensor(v.tensor) : image.floats(v);
    Grid grid = b.grid;
    if (b.measured) {
        Range range;
        integers_.measure(from, count(value), range);
        grid = range.grid();
    }
    bool finite = true;
    const int64_t row = v.width * v.channels;
    for (int64_t y = 0; y < v.height; ++y) {
        uint8_t *line = first + y * b.line;
        if (planes)
            finite &= integers_.planes_to_bytes(from + y * v.width, v.height * v.width, v.channels, v.width, grid, line,
                                                b.pitch);
        else if (b.pitch == v.channels)
            finite &= integers_.to_bytes(from + y * row, row, grid, line);
        else
            for (int64_t x = 0; x < v.width; ++x) {
                finite &= integers_.to_bytes(from + y * row + x * v.channels, v.channels, grid, line + x * b.pitch);
                std::memset(line + x * b.pitch + v.channels, 0, size_t(b.pitch - v.channels));
            }
    }
    around(b, uint8_t(grid.step.zero), at);
    image.steps[which] = finite ? grid.step : Step{std::numeric_limits<float>::quiet_NaN(), 0};
}

// The inputs of each pixel in the lines [first, last) side by side. What is written behind a run of taps is written over by the
// next one, or meets weights that are zero.
void IntegerProgram::gather(const Layer &layer, const Bytes &b, const uint8_t *from, int64_t first, int64_t last,
                            uint8_t *out) const {
    const Conv &c = layer.c;
    const bool together = c.dilation_x == 1;
    const int64_t pieces = together ? 1 : c.kernel_x, length = together ? c.kernel_x * c.channels : c.channels;
    for (int64_t y = first; y < last; ++y)
        for (int64_t x = 0; x < c.out_width(); ++x, out += layer.token) {
            const uint8_t *at = from + y * c.stride_y * b.line + x * c.stride_x * b.pitch;
            uint8_t *to = out;
            for (int64_t ky = 0; ky < c.kernel_y; ++ky, at += c.dilation_y * b.line)
                for (int64_t k = 0; k < pieces; ++k, to += length) {
                    const uint8_t *source = at + k * c.dilation_x * b.pitch;
                    for (int64_t i = 0; i < length; i += 16) std::memcpy(to + i, source + i, 16);
                }
        }
}

void IntegerProgram::lines(Image &image, int value, int64_t first, int64_t last, bool &wild) const {
    const Value &v = values_[size_t(value)];
    const Layer &layer = layers_[size_t(value)];
    const Bytes &b = bytes_[size_t(layer.bytes)];
    const Conv &c = layer.c;
    const int64_t pixels = v.height * v.width, row = v.width * v.channels;
    IntegerTask t = {};
    t.lines = last - first, t.tokens = int(v.width);
    const uint8_t *corner = image.memory + b.at + (b.halo_y - c.pad_y) * b.line + (b.halo_x - c.pad_x) * b.pitch;
    t.x = corner + first * c.stride_y * b.line, t.line = c.stride_y * b.line, t.pitch = c.stride_x * b.pitch;
    if (layer.gathered) {
        uint8_t *side =
            static_cast<uint8_t *>(scratch(Scratch::quantised, (last - first) * v.width * layer.token + 2 * spare));
        gather(layer, b, corner, first, last, side);
        t.x = side, t.pitch = layer.token, t.line = layer.token * v.width;
    }
    t.step = image.steps + layer.bytes, t.one_step = true, t.relu = layer.relu;
    t.out_token = v.channels, t.out_line = row;
    float *floats = nullptr;
    if (v.floats)
        floats = image.floats(v) + first * row;
    else if (v.tensor >= 0)
        floats = static_cast<float *>(scratch(Scratch::sums, (last - first) * row * int64_t(sizeof(float))));
    const float *other = v.other >= 0 ? image.floats(values_[size_t(v.other)]) + first * row : nullptr;
    t.other_token = v.channels, t.other_line = row;
    uint8_t *bytes = nullptr;
    if (v.direct >= 0) {
        const Bytes &to = bytes_[size_t(v.direct)];
        bytes = image.memory + to.at + (first + to.halo_y) * to.line + to.halo_x * to.pitch;
        t.bytes_token = to.pitch, t.bytes_line = to.line, t.grid = &to.grid, t.wild = &wild;
    }
    for (int64_t g = 0; g < int64_t(layer.matrix->groups.size()); ++g) {
        layer.matrix->take(g, layer.place.data(), layer.bias, t);
        t.out = floats ? floats + g * lanes : nullptr;
        t.other = other ? other + g * lanes : nullptr;
        t.bytes = bytes ? bytes + g * lanes : nullptr;
        integers_.multiply(t);
    }
    if (v.tensor >= 0)
        level_.from_tile(floats, v.channels, (last - first) * v.width, v.channels,
                         image.tensor(v.tensor) + first * v.width, pixels);
}

void IntegerProgram::convolve(Image &image, int value, int threads) const {
    const Value &v = values_[size_t(value)];
    const Layer &layer = layers_[size_t(value)];
    const Bytes &b = bytes_[size_t(layer.bytes)];
    const int64_t work = layer.matrix->count * 64 * v.height * v.width;
    threads = useful_threads(threads, work, integer_work);
    const int64_t inputs = layer.gathered ? v.width * layer.token : layer.c.stride_y * b.line;
    const int64_t outputs = v.width * v.channels * int64_t(sizeof(float));
    int64_t together = std::max<int64_t>(
        1, std::min(inputs_at_hand / std::max<int64_t>(1, inputs), outputs_at_hand / std::max<int64_t>(1, outputs)));
    if (threads > 1) together = std::max<int64_t>(1, std::min(together, v.height / (2 * threads)));
    const int64_t tasks = (v.height + together - 1) / together;
    std::atomic<bool> wild{false};
    parallel(threads, tasks, [&](int64_t task) {
        bool here = false;
        lines(image, value, task * together, std::min(v.height, (task + 1) * together), here);
        if (here) wild.store(true, std::memory_order_relaxed);
    });
    if (v.direct < 0) return;
    const Bytes &to = bytes_[size_t(v.direct)];
    around(to, uint8_t(to.grid.step.zero), image.memory + to.at);
    image.steps[v.direct] = wild.load() ? Step{std::numeric_limits<float>::quiet_NaN(), 0} : to.grid.step;
}

void IntegerProgram::image(int64_t n, const std::vector<float *> &tensors, int threads) const {
    const int64_t steps = round_up(int64_t(bytes_.size() * sizeof(Step)), 64);
    uint8_t *memory = static_cast<uint8_t *>(scratch(Scratch::program, memory_ + steps + spare));
    Image image = {memory + steps, reinterpret_cast<Step *>(memory), tensors, sizes_, n};
    for (size_t i = 0; i < values_.size(); ++i) {
        const Value &v = values_[i];
        const int64_t pixels = v.height * v.width;
        if (v.kind == Kind::input && v.floats)
            level_.from_tile(image.tensor(v.tensor), pixels, v.channels, pixels, image.floats(v), v.channels);
        if (v.kind == Kind::conv) convolve(image, int(i), threads);
        if (v.kind == Kind::thin || v.kind == Kind::max_pool) {
            const Value &from = values_[size_t(v.in)];
            (v.kind == Kind::thin ? thin_floats : pool_floats)(image.floats(from), from.width, from.channels, v.numbers,
                                                               image.floats(v), v.height, v.width);
            if (v.tensor >= 0)
                level_.from_tile(image.floats(v), v.channels, pixels, v.channels, image.tensor(v.tensor), pixels);
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
