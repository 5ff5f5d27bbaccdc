#include "integer.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <new>

#include "pool.h"

namespace prunus {
namespace kernels {
namespace {

constexpr size_t alignment = 64;
constexpr int64_t inputs_at_hand = 16 << 10;  // quantised inputs that stay in the first-level cache beside the weights
constexpr int64_t weights_at_hand = 8 << 20;  // more come from memory
constexpr int64_t task_work = 1 << 16;        // floats to quantise in one task
constexpr int full_from = 11;                 // weights of a row in a bank from which no index is cheaper

// What sixteen rows keep in one bank of 16 columns.
struct Bank {
    int32_t number;
    int count[lanes];
    uint8_t column[lanes][16];
    int8_t value[lanes][16];
    int most() const { return *std::max_element(count, count + lanes); }
};

// `width` weights of each row, from the one numbered `first`; where there are none left, zeros.
struct Part {
    const Bank *bank;
    int first;
};

// Which register of a unit holds a row, and where its four bytes begin.
int half_of(int64_t row) { return int(row / 4 % 2); }
int64_t byte_of(int64_t row) { return row % 4 * 4 + row / 8 * 16; }

int8_t value_at(const Part &part, int64_t row, int number) {
    return part.first + number < part.bank->count[row] ? part.bank->value[row][part.first + number] : int8_t(0);
}
uint8_t column_at(const Part &part, int64_t row, int number) {
    return part.first + number < part.bank->count[row] ? part.bank->column[row][part.first + number] : uint8_t(0);
}

// parts: one (four weights each), two (two each) or four (one each).
void write_unit(const Part *parts, int count, uint8_t *out) {
    const int width = 4 / count;
    for (int64_t row = 0; row < lanes; ++row)
        for (int slot = 0; slot < 4; ++slot) {
            const Part &part = parts[slot / width];
            const uint8_t column = column_at(part, row, slot % width);
            out[32 + half_of(row) * 32 + byte_of(row) + slot] = uint8_t(value_at(part, row, slot % width));
            // Indices stand as they are looked up: quads as the weights do; otherwise two bytes for each row, the first
            // half of the slots in the first register.
            const bool quad = count == 1;
            const int64_t byte = quad ? byte_of(row) + slot : row * 2 + slot % 2;
            const bool high = quad ? half_of(row) : slot / 2;
            out[byte] = uint8_t(out[byte] | (high ? column << 4 : column));
        }
}

// A whole bank, four columns at a time; rows stand as in a unit.
void write_full(const Bank &bank, uint8_t *out) {
    for (int64_t row = 0; row < lanes; ++row)
        for (int i = 0; i < bank.count[row]; ++i) {
            const int64_t column = bank.column[row][i];
            out[column / 4 * 64 + half_of(row) * 32 + byte_of(row) + column % 4] = uint8_t(bank.value[row][i]);
        }
}

// One group's kept weights, sorted into units.
struct Sorted {
    std::vector<Bank> kept;
    std::vector<const Bank *> full;
    std::vector<Part> quads, pairs, singles;

    Sorted(const Packed &p, int64_t group) {
        const int64_t per_packet = p.per_packet(), ratio = p.bank / table;
        const uint32_t mask = per_packet == 2 ? 15 : 255;
        const int32_t *schedule = p.schedule + p.schedule_start[group];
        const int8_t *values = static_cast<const int8_t *>(p.values) + p.slot_start[group] * lanes;
        for (int64_t s = 0; s < p.slots(group); ++s) {
            if (s == 0 || schedule[s] != schedule[s - 1])
                for (int64_t i = 0; i < ratio; ++i) kept.push_back({int32_t(schedule[s] * ratio + i), {}, {}, {}});
            const uint8_t *packet = p.index + (p.packet_start[group] + s / per_packet) * lanes;
            for (int64_t row = 0; row < lanes; ++row) {
                const int8_t value = values[s * lanes + row];
                if (value == 0) continue;
                const uint32_t column = (uint32_t(packet[row]) >> (s % per_packet * 4)) & mask;
                Bank &to = kept[kept.size() - size_t(ratio) + column / uint32_t(table)];
                const int at = to.count[row]++;
                to.column[row][at] = uint8_t(column % uint32_t(table)), to.value[row][at] = value;
            }
        }
        for (const Bank &b : kept) {
            const int most = b.most();
            if (most >= full_from) full.push_back(&b);
            for (int first = 0; first < most && most < full_from; first += 4)
                (most - first >= 3 ? quads : most - first == 2 ? pairs : singles).push_back({&b, first});
        }
        // Whole units: what is left over goes where fewer places stay empty.
        for (size_t over = singles.size() % 4; over == 1 || over == 2; over = singles.size() % 4)
            pairs.push_back(singles.back()), singles.pop_back();
        if (pairs.size() % 2) quads.push_back(pairs.back()), pairs.pop_back();
        while (singles.size() % 4) singles.push_back({singles.back().bank, 16});  // nothing more
    }
};

}  // namespace

IntegerMatrix::IntegerMatrix(const Packed &p, const float *row_scale)
    : rows(p.rows), cols(p.cols), banks((p.cols + table - 1) / table), units(nullptr, std::free) {
    sum.assign(size_t(p.groups * lanes), 0);
    scale.assign(size_t(p.groups * lanes), 0.0f);
    std::copy(row_scale, row_scale + p.rows, scale.begin());
    std::vector<uint8_t> bytes;
    for (int64_t g = 0; g < p.groups; ++g) {
        const Sorted sorted(p, g);
        groups.push_back({int64_t(bytes.size()), int64_t(bank.size()), int32_t(sorted.full.size()),
                          int32_t(sorted.quads.size()), int32_t(sorted.pairs.size() / 2),
                          int32_t(sorted.singles.size() / 4), false});
        const IntegerGroup &now = groups.back();
        count += 4 * now.full + now.quads + now.pairs + now.crossed;
        for (const Bank *whole : sorted.full) {
            bytes.resize(bytes.size() + size_t(full_bytes));
            write_full(*whole, bytes.data() + bytes.size() - full_bytes);
            bank.push_back(whole->number);
        }
        const auto write = [&](const std::vector<Part> &parts, size_t together) {
            for (size_t i = 0; i < parts.size(); i += together) {
                bytes.resize(bytes.size() + size_t(unit_bytes));
                write_unit(&parts[i], int(together), bytes.data() + bytes.size() - unit_bytes);
                for (size_t j = 0; j < together; ++j) bank.push_back(parts[i + j].bank->number);
            }
        };
        write(sorted.quads, 1), write(sorted.pairs, 2), write(sorted.singles, 4);
        for (const Bank &b : sorted.kept)
            for (int64_t row = 0; row < lanes; ++row)
                for (int i = 0; i < b.count[row]; ++i) sum[size_t(g * lanes + row)] += b.value[row][i];
    }
    for (int32_t number : bank) place.push_back(number * int32_t(table));
    for (size_t g = 0; g + 1 < groups.size(); ++g) {
        IntegerGroup &one = groups[g], &two = groups[g + 1];
        const auto first = bank.begin() + one.place, second = bank.begin() + two.place;
        const auto last = g + 2 < groups.size() ? bank.begin() + groups[g + 2].place : bank.end();
        one.twin = one.full == two.full && one.quads == two.quads && one.pairs == two.pairs &&
                   one.crossed == two.crossed && std::equal(first, second, second, last);
    }
    units.reset(
        static_cast<uint8_t *>(std::aligned_alloc(alignment, (bytes.size() + alignment) / alignment * alignment)));
    if (!units) throw std::bad_alloc();
    std::copy(bytes.begin(), bytes.end(), units.get());
}

void IntegerMatrix::each(const std::function<void(int64_t, int64_t, int8_t)> &use) const {
    for (size_t g = 0; g < groups.size(); ++g) {
        const IntegerGroup &group = groups[g];
        const uint8_t *unit = units.get() + group.start;
        const int32_t *from = bank.data() + group.place;
        const auto weight = [&](int64_t row, int64_t column, uint8_t value) {
            if (value) use(int64_t(g) * lanes + row, column, int8_t(value));
        };
        for (int32_t b = 0; b < group.full; ++b, unit += full_bytes, ++from)
            for (int64_t row = 0; row < lanes; ++row)
                for (int64_t i = 0; i < table; ++i)
                    weight(row, *from * table + i, unit[i / 4 * 64 + half_of(row) * 32 + byte_of(row) + i % 4]);
        const auto some = [&](int32_t count, int banks) {
            for (int32_t u = 0; u < count; ++u, unit += unit_bytes, from += banks)
                for (int64_t row = 0; row < lanes; ++row)
                    for (int slot = 0; slot < 4; ++slot) {
                        const bool high = banks == 1 ? half_of(row) : slot / 2;
                        const uint8_t index = unit[banks == 1 ? byte_of(row) + slot : row * 2 + slot % 2];
                        weight(row, from[slot * banks / 4] * table + (high ? index >> 4 : index & 15),
                               unit[32 + half_of(row) * 32 + byte_of(row) + slot]);
                    }
        };
        some(group.quads, 1), some(group.pairs, 2), some(group.crossed, 4);
    }
}

void IntegerMatrix::take(int64_t g, const int32_t *places, const float *bias, IntegerTask &t) const {
    const IntegerGroup &group = groups[size_t(g)];
    const int64_t first = g * lanes;
    t.units = units.get() + group.start, t.place = places + group.place;
    t.full = group.full, t.quads = group.quads, t.pairs = group.pairs, t.crossed = group.crossed;
    t.sum = sum.data() + first, t.scale = scale.data() + first, t.bias = bias ? bias + first : nullptr;
    t.rows = std::min(lanes, rows - first);
}

Quantised quantise_tokens(const IntegerLevel &level, const float *x, int64_t cols, int64_t ldx, int64_t tokens,
                          int threads, const Grid *fixed) {
    const int64_t pitch = (cols + table - 1) / table * table;
    const int64_t bytes = pitch * tokens + int64_t(sizeof(Step)) * tokens;
    uint8_t *q = static_cast<uint8_t *>(scratch(Scratch::quantised, bytes + table));
    Step *steps = reinterpret_cast<Step *>(q + pitch * tokens);
    const int64_t together = std::max<int64_t>(1, task_work / std::max<int64_t>(1, cols));
    parallel(threads, (tokens + together - 1) / together, [&](int64_t task) {
        for (int64_t n = task * together; n < std::min(tokens, (task + 1) * together); ++n) {
            const float *from = x + n * ldx;
            uint8_t *to = q + n * pitch;
            Range range;
            if (!fixed) level.measure(from, cols, range);
            const Grid grid = fixed ? *fixed : range.grid();
            const bool finite = level.to_bytes(from, cols, grid, to);
            std::fill(to + cols, to + pitch, uint8_t(0));
            steps[n] = finite ? grid.step : Step{std::numeric_limits<float>::quiet_NaN(), 0};
        }
    });
    return {q, steps, pitch};
}

void multiply_tokens(const IntegerLevel &level, const IntegerMatrix &m, const Quantised &inputs, int64_t tokens,
                     float *y, int64_t ldy, const float *bias, bool relu, int threads) {
    const int64_t groups = int64_t(m.groups.size()), pitch = inputs.pitch;
    if (tokens == 0 || groups == 0) return;
    const int useful = useful_threads(threads, m.count * 64 * tokens, integer_work);
    // Tokens are cut so that their inputs stay in the first-level cache while all rows read them; weights that come
    // from memory are read for as many tokens as the second-level cache holds.
    const int64_t at_hand = m.count * unit_bytes > weights_at_hand ? 8 * inputs_at_hand : inputs_at_hand;
    const int64_t together = level.together, fit = at_hand / std::max<int64_t>(1, pitch);
    const int64_t block = std::max<int64_t>(together, fit / together * together);
    const int64_t blocks = (tokens + block - 1) / block;
    const int64_t parts = useful > 1 ? std::min(groups, std::max<int64_t>(1, (4 * useful + blocks - 1) / blocks)) : 1;
    parallel(useful, blocks * parts, [&](int64_t task) {
        const int64_t n = task / parts * block, part = task % parts, count = std::min(block, tokens - n);
        IntegerTask t = {};
        t.lines = 1, t.tokens = int(count);
        t.x = inputs.at + n * pitch, t.pitch = pitch, t.step = inputs.steps + n;
        t.relu = relu, t.out_token = ldy;
        const auto take = [&](int64_t g, IntegerTask &to) {
            m.take(g, m.place.data(), bias, to);
            to.out = y + n * ldy + g * lanes;
        };
        IntegerTask other = t;
        const int64_t end = groups * (part + 1) / parts;
        for (int64_t g = groups * part / parts; g < end; ++g) {
            take(g, t);
            const bool twins = count == 1 && g + 1 < end && m.groups[size_t(g)].twin;
            if (twins) take(++g, other);
            t.twin = twins ? &other : nullptr;
            level.multiply(t);
        }
    });
}

void integer_linear(const IntegerLevel &level, const IntegerMatrix &m, const float *x, int64_t ldx, int64_t tokens,
                    float *y, const float *bias, bool relu, int threads, const Grid *fixed) {
    const int useful = tokens * m.cols < task_work ? 1 : threads;
    const Quantised inputs = quantise_tokens(level, x, m.cols, ldx, tokens, useful, fixed);
    multiply_tokens(level, m, inputs, tokens, y, m.rows, bias, relu, threads);
}

}  // namespace kernels
}  // namespace prunus
