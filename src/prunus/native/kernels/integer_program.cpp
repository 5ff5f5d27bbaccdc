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

constexpr int64_t spare = 64;                 // bytes behind each piece of memory that may be written or read
constexpr int64_t inputs_at_hand = 16 << 10;  // bytes that lines of tokens read
constexpr int64_t numbers_at_hand = 3 << 10;  // sums of these

int64_t round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

}  // namespace

struct IntegerProgram::Image {
    uint8_t *memory;
    Step *steps;  // of each way in which a value is read, for this image
    const std::vector<float *> &tensors;
    const std::vector<int64_t> &sizes;
    int64_t n;
    // A value's floats; null where there are none.
    float *planes(const Value &v) const {
        if (v.tensor >= 0) return tensors[size_t(v.tensor)] + n * sizes[size_t(v.tensor)];
        return v.planes.kept ? reinterpret_cast<float *>(memory + v.planes.at) : nullptr;
    }
    float *tokens(const Value &v) const {
        return v.tokens.kept ? reinterpret_cast<float *>(memory + v.tokens.at) : nullptr;
    }
    float *floats(const Value &v) const { return v.turned ? tokens(v) : planes(v); }
};

IntegerProgram::IntegerProgram(const Level &level, const IntegerLevel &integers)
    : level_(level), integers_(integers), turned_(integers.turned) {}

void IntegerProgram::add(Kind kind, int64_t channels, int64_t height, int64_t width, int in, int other) {
    const int number = int(values_.size());
    if (in >= number || other >= number || (kind != Kind::input && in < 0))
        throw std::invalid_argument("a step reads what is not there yet");
    if (channels < 1 || height < 1 || width < 1) throw std::invalid_argument("a step has no result");
    for (int read : {in, other})
        if (read >= 0) values_[size_t(read)].last = number;
    values_.push_back({kind, channels, height, width, in, other, {}, number, -1});
    layers_.emplace_back();
    jobs_.emplace_back();
}

void IntegerProgram::input(int64_t channels, int64_t height, int64_t width) {
    add(Kind::input, channels, height, width, -1, -1);
    values_.back().tensor = int(values_.size()) - 1;
}

void IntegerProgram::conv(std::shared_ptr<const IntegerMatrix> matrix, int64_t bank, const Conv &c, const float *bias,
                          bool relu, float cap, const Grid *fixed, int in, int other) {
    add(Kind::conv, matrix->rows, c.out_height(), c.out_width(), in, other);
    const int64_t taps = c.kernel_y * c.kernel_x;
    const Value &from = values_[size_t(in)], &to = values_.back();
    const int64_t columns = taps * (c.channels < bank ? c.channels : round_up(c.channels, bank));
    if (from.channels != c.channels || matrix->cols != columns)
        throw std::invalid_argument("a matrix does not fit its convolution");
    require_same(other, to);
    work_ += matrix->count * 64 * to.pixels();
    Layer layer = {std::move(matrix),       c,           bank, bias,    relu,    cap, fixed != nullptr,
                   fixed ? *fixed : Grid{}, Way::planes, -1,   nullptr, nullptr, {},  {}};
    const auto own = std::make_shared<const OwnWeights>(*layer.matrix, c, bank);
    if (own->channels > 0) layer.way = Way::own, layer.own = own, turned_ = true;
    layers_.back() = std::move(layer);
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

// The floats of a value as its step did not leave them.
void IntegerProgram::turn_floats(Image &image, int value) const {
    const Value &v = values_[size_t(value)];
    if (v.turned && (v.planes.kept || v.tensor >= 0))
        level_.from_tile(image.tokens(v), v.channels, v.pixels(), v.channels, image.planes(v), v.pixels());
    if (!v.turned && v.tokens.kept)
        level_.from_tile(image.planes(v), v.pixels(), v.channels, v.pixels(), image.tokens(v), v.channels);
}

// One way in which a value is read, made from its floats.
void IntegerProgram::make_bytes(Image &image, int value, int which) const {
    const Value &v = values_[size_t(value)];
    const Bytes &b = bytes_[size_t(which)];
    const bool turned = v.turned && b.turned;
    const float *from = turned ? image.tokens(v) : image.planes(v);
    Grid grid = b.grid;
    if (b.measured) {
        Range range;
        integers_.measure(from, v.count(), range);
        grid = range.grid();
    }
    uint8_t *to = image.memory + b.at;
    bool finite = true;
    if (turned) {
        const bool whole = b.form.pitch == v.channels;  // a line of pixels without gaps
        const int64_t times = whole ? 1 : v.width, count = whole ? v.width * v.channels : v.channels;
        for (int64_t y = 0; y < v.height; ++y)
            for (int64_t x = 0; x < times; ++x, from += count)
                finite &= integers_.to_bytes(from, count, grid, to + b.form.at(y, x));
    } else if (b.turned) {
        uint8_t *planes = static_cast<uint8_t *>(scratch(Scratch::quantised, v.count() + spare));
        finite = integers_.to_bytes(from, v.count(), grid, planes);
        b.form.turn(integers_, planes, to);
    } else {
        finite = integers_.to_bytes(from, v.count(), grid, to);
    }
    image.steps[which] = finite ? grid.step : Step{std::numeric_limits<float>::quiet_NaN(), 0};
    if (b.turned) b.form.clear_around(uint8_t(image.steps[which].zero), to);
}

// Both ways return whether a byte was made from something that is not finite.
bool IntegerProgram::by_planes(Image &image, int value, int threads) const {
    const Value &v = values_[size_t(value)];
    const Layer &layer = layers_[size_t(value)];
    const PlaneRows &m = *layer.rows;
    const Step step = image.steps[layer.bytes];
    const uint8_t *x = image.memory + bytes_[size_t(layer.bytes)].at;
    const int64_t channels = layer.c.channels, at_once = integers_.pixels;
    const Shifts &shifts = m.shifts;
    uint8_t *copies = nullptr;
    if (shifts.copied) copies = static_cast<uint8_t *>(scratch(Scratch::quantised, channels * shifts.plane + at_once));
    std::atomic<bool> wild{false};
    for (int64_t top = 0; top < v.height; top += shifts.strip) {
        const int64_t cut = threads > 1 ? std::min<int64_t>(channels, 2 * threads) : 1;
        parallel(shifts.copied ? threads : 1, shifts.copied ? cut : 0, [&](int64_t part) {
            shifts.copy(integers_, layer.c, x, top, channels * part / cut, channels * (part + 1) / cut,
                        uint8_t(step.zero), copies);
        });
        const int64_t here = std::min(shifts.strip, v.height - top) * v.width, before = top * v.width;
        const int64_t tiles = (here + at_once - 1) / at_once;
        const int64_t parts = threads > 1 ? std::min(m.rows, (4 * threads + tiles - 1) / tiles) : 1;
        parallel(threads, tiles * parts, [&](int64_t task) {
            const int64_t first = task / parts * at_once, part = task % parts, row = m.rows * part / parts;
            PlaneTask t = plane_task(image, value, row, before + first);
            bool strange = false;
            t.rows = m.rows * (part + 1) / parts - row, t.pixels = int(std::min(at_once, here - first));
            t.sums = static_cast<int32_t *>(scratch(Scratch::sums, t.rows * at_once * int64_t(sizeof(int32_t))));
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
    t.out = image.planes(v) ? image.planes(v) + at : nullptr;
    t.other = v.other >= 0 ? image.planes(values_[size_t(v.other)]) + at : nullptr;
    t.bytes = v.direct >= 0 ? image.memory + bytes_[size_t(v.direct)].at + at : nullptr;
    t.grid = v.direct >= 0 ? &bytes_[size_t(v.direct)].grid : nullptr;
    return t;
}

// What becomes of the numbers of some lines, from the line `first` on, and the channels from `row` on.
TokenEnd IntegerProgram::token_end(const Image &image, int value, int64_t row, int64_t first, int64_t lines) const {
    const Value &v = values_[size_t(value)];
    const int64_t at = first * v.width * v.channels + row;
    TokenEnd t = {};
    t.relu = layer(value).relu, t.cap = layer(value).cap;
    t.lines = lines, t.tokens = v.width;
    t.out = image.tokens(v) ? image.tokens(v) + at : nullptr;
    t.other = v.other >= 0 ? image.tokens(values_[size_t(v.other)]) + at : nullptr;
    t.out_token = v.channels, t.out_line = v.width * v.channels;
    if (v.direct < 0) return t;
    const Bytes &b = bytes_[size_t(v.direct)];
    t.bytes = image.memory + b.at + b.form.at(first, 0) + row, t.grid = &b.grid;
    t.byte_token = b.form.pitch, t.byte_line = b.form.line();
    return t;
}

bool IntegerProgram::by_tokens(Image &image, int value, int threads) const {
    const Value &v = values_[size_t(value)];
    const Layer &layer = layers_[size_t(value)];
    const Conv &c = layer.c;
    const Step &step = image.steps[layer.bytes];
    const Turned &form = bytes_[size_t(layer.bytes)].form;
    const uint8_t *x = image.memory + bytes_[size_t(layer.bytes)].at + form.first(c);
    const bool own = layer.way == Way::own;
    const int64_t wide = own ? own_block : lanes, groups = (v.channels + wide - 1) / wide;
    const int64_t across = c.stride_x * form.pitch, down = c.stride_y * form.line();
    // Lines whose inputs and numbers stay in the first-level cache.
    const int64_t inputs = std::max<int64_t>(1, inputs_at_hand / std::max<int64_t>(1, v.width * across));
    const int64_t numbers = std::max<int64_t>(1, numbers_at_hand / (v.width * wide));
    const int64_t lines = std::min({v.height, inputs, numbers}), blocks = (v.height + lines - 1) / lines;
    const int64_t parts = threads > 1 ? std::min(groups, (4 * threads + blocks - 1) / blocks) : 1;
    const bool joined = across == form.pitch && down == v.width * form.pitch;  // one line holds them all
    if (v.direct >= 0) {
        const Bytes &b = bytes_[size_t(v.direct)];
        b.form.clear_around(uint8_t(b.grid.step.zero), image.memory + b.at);
    }
    std::vector<float> bias;  // in whole blocks
    if (own && layer.bias) {
        bias.assign(size_t(groups * own_block), 0.0f);
        std::copy_n(layer.bias, v.channels, bias.begin());
    }
    std::atomic<bool> wild{false};
    parallel(threads, blocks * parts, [&](int64_t task) {
        const int64_t first = task / parts * lines, part = task % parts, here = std::min(lines, v.height - first);
        float *sums = static_cast<float *>(scratch(Scratch::sums, here * v.width * wide * int64_t(sizeof(float))));
        bool strange = false;
        for (int64_t g = groups * part / parts; g < groups * (part + 1) / parts; ++g) {
            const int64_t row = g * wide;
            TokenEnd end = token_end(image, value, row, first, here);
            end.from = sums, end.from_token = wide, end.rows = std::min(wide, v.channels - row), end.wild = &strange;
            if (own) {
                OwnTask t = {};
                t.x = x + first * down + row, t.line = down, t.pitch = across;
                t.at = layer.taps.data(), t.fours = layer.own->fours;
                t.weight = layer.own->weight.data() + g * t.fours * 4 * own_block;
                t.channels = end.rows;
                t.step = step, t.sum = layer.own->sum.data() + row, t.scale = layer.own->scale.data() + row;
                t.bias = bias.empty() ? nullptr : bias.data() + row;
                t.lines = here, t.tokens = v.width, t.out = sums;
                t.end = integers_.ends ? &end : nullptr;
                integers_.own(t);
            } else {
                IntegerTask t = {};
                t.lines = joined ? 1 : here, t.tokens = int(joined ? here * v.width : v.width);
                t.x = x + first * down, t.line = down, t.pitch = across;
                t.step = &step, t.one_step = true;
                t.out = sums, t.out_token = lanes, t.out_line = v.width * lanes;
                t.end = integers_.ends ? &end : nullptr;
                layer.matrix->take(g, layer.place.data(), layer.bias, t);
                integers_.multiply(t);
            }
            if (!integers_.ends) integers_.end_tokens(end);
        }
        if (strange) wild.store(true, std::memory_order_relaxed);
    });
    return wild.load();
}

void IntegerProgram::convolve(Image &image, int value, int threads) const {
    const Value &v = values_[size_t(value)];
    const Layer &layer = layers_[size_t(value)];
    threads = useful_threads(threads, layer.matrix->count * 64 * v.pixels(), integer_work);
    const bool wild = layer.way == Way::planes ? by_planes(image, value, threads) : by_tokens(image, value, threads);
    if (v.direct < 0) return;
    image.steps[v.direct] =
        wild ? Step{std::numeric_limits<float>::quiet_NaN(), 0} : bytes_[size_t(v.direct)].grid.step;
}

// A step whose numbers are floats alone, in planes or turned.
void IntegerProgram::step_of_floats(Image &image, int value) const {
    const Value &v = values_[size_t(value)], &from = values_[size_t(v.in)];
    const int64_t *m = v.numbers;
    if (!v.turned) {
        (v.kind == Kind::thin ? thin_image : max_pool_image)({image.planes(from), {}, from.height, from.width},
                                                             from.channels, m,
                                                             {image.planes(v), {}, v.height, v.width});
        return;
    }
    const float *in = image.tokens(from);
    float *out = image.tokens(v);
    const int64_t k = from.channels;
    for (int64_t y = 0; y < v.height; ++y)
        for (int64_t x = 0; x < v.width; ++x, out += v.channels) {
            if (v.kind == Kind::thin) {
                std::fill(out, out + m[2], 0.0f);
                std::copy_n(in + (y * m[0] * from.width + x * m[1]) * k, k, out + m[2]);
                std::fill(out + m[2] + k, out + v.channels, 0.0f);
                continue;
            }
            for (int64_t tap = 0; tap < m[0] * m[1]; ++tap) {
                const float *one = in + ((y * m[2] + tap / m[1]) * from.width + x * m[3] + tap % m[1]) * k;
                for (int64_t i = 0; i < k; ++i) out[i] = tap == 0 ? one[i] : larger(out[i], one[i]);
            }
        }
}

void IntegerProgram::image(int64_t n, const std::vector<float *> &tensors, int threads) const {
    const int64_t steps = round_up(int64_t(bytes_.size() * sizeof(Step)) + spare_, 64);
    uint8_t *memory = static_cast<uint8_t *>(scratch(Scratch::program, memory_ + steps));
    Image image = {memory + steps, reinterpret_cast<Step *>(memory), tensors, sizes_, n};
    for (size_t i = 0; i < values_.size(); ++i) {
        const Value &v = values_[i];
        if (v.kind == Kind::conv) convolve(image, int(i), threads);
        if (v.kind == Kind::float_conv) {
            const float *other = v.other >= 0 ? image.planes(values_[size_t(v.other)]) : nullptr;
            jobs_[i]->image(image.planes(values_[size_t(v.in)]), other, image.planes(v), threads);
        }
        if (v.kind == Kind::thin || v.kind == Kind::max_pool) step_of_floats(image, int(i));
        turn_floats(image, int(i));
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
