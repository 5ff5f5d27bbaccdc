// Integer kernels against sums of whole numbers.
#pragma once

#include "checking.h"
#include "integer_program.h"

namespace {

// Integer products against sums of whole numbers, bit for bit, from inputs and for outputs that are exactly as large as
// they must be.
void check_integers(const IntegerLevel &level) {
    const int64_t rows = draw(1, 50), cols = draw(1, 150), tokens = draw(1, 20), banks[] = {16, 32, 64, 128, 256};
    // Every second mask keeps equally many in all rows, so that groups read the same places.
    const Matrix m(rows, cols, banks[draw(0, 4)], std::pow(double(draw(0, 10)) / 10, 2), Values::i8, nullptr,
                   draw(0, 1));
    const IntegerMatrix integer(m.packed, m.scales());
    const Floats x(tokens * cols), bias(rows);
    std::unique_ptr<float[]> y(new float[size_t(tokens * rows)]);
    const bool relu = draw(0, 1), biased = draw(0, 1);
    integer_linear(level, integer, x.at.get(), cols, tokens, y.get(), biased ? bias.at.get() : nullptr, relu,
                   int(draw(1, 3)));
    for (int64_t n = 0; n < tokens; ++n) {
        float low = 0.0f, high = 0.0f;
        for (int64_t c = 0; c < cols; ++c)
            low = std::fmin(low, x.at[size_t(n * cols + c)]), high = std::fmax(high, x.at[size_t(n * cols + c)]);
        const float step = high / 127.0f - low / 127.0f, inverse = 1.0f / step;
        const int64_t zero = std::lrint(-low * inverse);
        for (int64_t r = 0; r < rows; ++r) {
            int64_t sum = 0;
            for (int64_t c = 0; c < cols; ++c) {
                const int64_t q = std::max<int64_t>(
                    0, std::min<int64_t>(127, std::lrint(x.at[size_t(n * cols + c)] * inverse) + zero));
                sum += (q - zero) * std::lround(double(m.dense[size_t(r * cols + c)]) / m.scales()[r]);
            }
            float value = float(sum) * (step * m.scales()[r]);
            if (biased) value += bias.at[size_t(r)];
            const float found = y[size_t(n * rows + r)], exact = relu && value < 0.0f ? 0.0f : value;
            if (std::memcmp(&found, &exact, 4) == 0) continue;
            std::printf("integers on %s: %.9g instead of %.9g\n", level.name, double(found), double(exact));
            std::exit(1);
        }
    }
}

// A plain convolution of one image with whole numbers: what every instruction set must give, bit for bit.
struct PlainConv {
    Conv c;
    int64_t bank;
    const Matrix &m;
    const float *bias;
    bool relu;
    float cap;
    const Grid *fixed;

    int64_t taps() const { return c.kernel_y * c.kernel_x; }
    int64_t column(int64_t tap, int64_t k) const {
        return c.channels < bank ? tap * c.channels + k : (k / bank * taps() + tap) * bank + k % bank;
    }

    std::vector<float> operator()(const std::vector<float> &x, const float *other) const {
        float low = 0.0f, high = 0.0f;
        for (float v : x) low = std::fmin(low, v), high = std::fmax(high, v);
        const Grid grid = fixed ? *fixed : grid_for(low, high, 0);
        std::vector<int64_t> q;  // less the byte for zero
        for (float v : x) {
            const int64_t whole = std::lrint(std::fmax(-1e6f, std::fmin(1e6f, v * grid.inverse))) + grid.step.zero;
            q.push_back(grid.flat ? 0 : std::max<int64_t>(0, std::min<int64_t>(127, whole)) - grid.step.zero);
        }
        const int64_t h = c.out_height(), w = c.out_width();
        std::vector<float> y;
        for (int64_t r = 0; r < m.packed.rows; ++r)
            for (int64_t p = 0; p < h * w; ++p) {
                int64_t sum = 0;
                for (int64_t k = 0; k < c.channels; ++k)
                    for (int64_t tap = 0; tap < taps(); ++tap) {
                        const int64_t iy = p / w * c.stride_y + tap / c.kernel_x * c.dilation_y - c.pad_y;
                        const int64_t ix = p % w * c.stride_x + tap % c.kernel_x * c.dilation_x - c.pad_x;
                        if (iy < 0 || ix < 0 || iy >= c.height || ix >= c.width) continue;
                        const double weight = double(m.dense[size_t(r * m.packed.cols + column(tap, k))]);
                        sum += std::lround(weight / m.scales()[r]) * q[size_t((k * c.height + iy) * c.width + ix)];
                    }
                float value = float(sum) * (grid.step.step * m.scales()[r]) + bias[r];
                if (other) value += other[r * h * w + p];
                y.push_back(!relu ? value : std::fmin(cap, std::fmax(0.0f, value)));
            }
        return y;
    }
};

Matrix conv_matrix(const Conv &c, int64_t rows, int64_t bank) {
    const int64_t taps = c.kernel_y * c.kernel_x,
                  cols = taps * (c.channels < bank ? c.channels : (c.channels + bank - 1) / bank * bank);
    std::vector<bool> used(static_cast<size_t>(cols));
    for (int64_t i = 0; i < cols; ++i)
        used[size_t(i)] = c.channels < bank || i / (taps * bank) * bank + i % bank < c.channels;
    return Matrix(rows, cols, bank, std::pow(double(draw(1, 10)) / 10, 2), Values::i8, &used);
}

// One convolution, and one of its result to which that is added, with ranges of each image or given ones: a whole run
// against plain sums, for one and for several threads.
void check_integer_conv(const IntegerLevel &level) {
    const bool large = draw(0, 29) == 0;  // enough to go in strips
    const int64_t batch = large ? 1 : draw(1, 3), bank = draw(0, 1) ? 16 : 32, rows = draw(1, large ? 3 : 40);
    const auto sizes = [&](int64_t channels, int64_t height, int64_t width) {
        Conv c = {1,          channels,   height,     width,      draw(1, 4), draw(1, 4), draw(1, 3), draw(1, 3),
                  draw(0, 3), draw(0, 3), draw(1, 2), draw(1, 2), {},         {},         {}};
        return c;
    };
    const auto any = [&] {
        return large ? sizes(draw(32, 40), draw(50, 70), draw(60, 80)) : sizes(draw(1, 40), draw(1, 12), draw(1, 20));
    };
    Conv one = any();
    while (one.out_height() < 1 || one.out_width() < 1) one = any();
    Conv two = sizes(rows, one.out_height(), one.out_width());
    two.kernel_y = two.kernel_x = 3, two.stride_y = two.stride_x = 1;  // so that what comes in can be added
    two.dilation_y = two.dilation_x = two.pad_y = two.pad_x = 1;
    const Matrix first = conv_matrix(one, rows, bank), second = conv_matrix(two, rows, bank);
    const Floats bias(rows), x(batch * one.channels * one.height * one.width);
    const Grid grids[] = {fixed_grid(-1.0f, 2.0f), fixed_grid(-3.0f, 5.0f)};
    const Grid *fixed[] = {draw(0, 1) ? &grids[0] : nullptr, draw(0, 1) ? &grids[1] : nullptr};
    const float cap = draw(0, 1) ? 0.5f : std::numeric_limits<float>::infinity();
    const bool relu = draw(0, 1), both = draw(0, 1), added = draw(0, 1);
    IntegerProgram program(portable_level(), level);
    program.input(one.channels, one.height, one.width);
    const auto matrix = [](const Matrix &m) { return std::make_shared<const IntegerMatrix>(m.packed, m.scales()); };
    program.conv(matrix(first), bank, one, bias.at.get(), relu, cap, fixed[0], 0, -1);
    program.conv(matrix(second), bank, two, bias.at.get(), false, cap, fixed[1], 1, added ? 1 : -1);
    program.finish(both ? std::vector<int>{1, 2} : std::vector<int>{2});
    const int64_t in = one.channels * one.height * one.width, out = rows * one.out_height() * one.out_width();
    std::unique_ptr<float[]> y(new float[size_t(batch * out)]), z(new float[size_t(batch * out)]);
    for (int threads : {1, 3}) {
        std::vector<float *> tensors = {x.at.get(), z.get()};
        if (both) tensors.insert(tensors.begin() + 1, y.get());
        program.run(batch, tensors, threads);
        for (int64_t n = 0; n < batch; ++n) {
            const std::vector<float> image(x.at.get() + n * in, x.at.get() + (n + 1) * in);
            const std::vector<float> middle =
                PlainConv{one, bank, first, bias.at.get(), relu, cap, fixed[0]}(image, nullptr);
            const std::vector<float> last = PlainConv{two, bank, second, bias.at.get(), false, cap, fixed[1]}(
                middle, added ? middle.data() : nullptr);
            const auto same = [&](const std::vector<float> &exact, const float *found) {
                for (size_t i = 0; i < exact.size(); ++i)
                    if (exact[i] != found[i]) compare("integer convolution", level.name, found[i], exact[i], 0.0);
            };
            if (both) same(middle, y.get() + n * out);
            same(last, z.get() + n * out);
        }
    }
}

// A convolution of floats, of one channel for each row or of all, before one of bytes: against both taken by themselves.
void check_mixed(const IntegerLevel &level) {
    const bool own = draw(0, 1);
    const int64_t batch = draw(1, 3), channels = draw(1, 40), rows = own ? channels : draw(1, 40), taps = 9;
    Conv one = {1, channels, draw(3, 14), draw(3, 20), 3, 3, draw(1, 2), draw(1, 2), 1, 1, 1, 1, {}, {}, {}};
    one.more_y = draw(0, 1), one.more_x = draw(0, 1);
    const int64_t cols = taps * (channels < 16 ? channels : (channels + 15) / 16 * 16);
    std::vector<bool> used(static_cast<size_t>(rows * cols));
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t k = own ? r : 0; k < (own ? r + 1 : channels); ++k)
            for (int64_t tap = 0; tap < taps; ++tap)
                used[size_t(r * cols + (channels < 16 ? tap * channels + k : (k / 16 * taps + tap) * 16 + k % 16))] =
                    true;
    const Matrix first(rows, cols, 16, 0.7, Values(draw(0, 2)), &used);
    Conv two = {1, rows, one.out_height(), one.out_width(), 1, 1, 1, 1, 0, 0, 1, 1, {}, {}, {}};
    const Matrix second = conv_matrix(two, 8, 16);
    const Floats bias(40), x(batch * channels * one.height * one.width);
    const float cap = draw(0, 1) ? 0.5f : std::numeric_limits<float>::infinity();
    const Finish finish = {bias.at.get(), first.scales(), nullptr, true, cap};
    const int64_t middle = rows * two.height * two.width, out = 8 * two.height * two.width;
    IntegerProgram program(portable_level(), level);
    program.input(channels, one.height, one.width);
    program.float_conv(first.packed, one, finish, 0, -1);
    program.conv(std::make_shared<const IntegerMatrix>(second.packed, second.scales()), 16, two, bias.at.get(), false,
                 cap, nullptr, 1, -1);
    program.finish({2});
    std::vector<float> y(size_t(batch * middle)), z(size_t(batch * out));
    Places places;
    Conv all = one;
    all.batch = batch;
    conv(portable_level(), first.packed, places, all, x.at.get(), y.data(), finish, 1);
    for (int threads : {1, 3}) {
        program.run(batch, {x.at.get(), z.data()}, threads);
        for (int64_t n = 0; n < batch; ++n) {
            const std::vector<float> image(y.begin() + n * middle, y.begin() + (n + 1) * middle);
            const std::vector<float> exact =
                PlainConv{two, 16, second, bias.at.get(), false, cap, nullptr}(image, nullptr);
            for (size_t i = 0; i < exact.size(); ++i)
                if (exact[i] != z[size_t(n * out) + i])
                    compare("floats before bytes", level.name, z[size_t(n * out) + i], exact[i], 0.0);
        }
    }
}

// A matrix whose rows each read one channel, their own.
Matrix own_matrix(const Conv &c, int64_t bank) {
    const int64_t taps = c.kernel_y * c.kernel_x;
    const int64_t cols = taps * (c.channels < bank ? c.channels : (c.channels + bank - 1) / bank * bank);
    std::vector<bool> used(static_cast<size_t>(c.channels * cols));
    for (int64_t r = 0; r < c.channels; ++r)
        for (int64_t tap = 0; tap < taps; ++tap)
            used[size_t(r * cols +
                        (c.channels < bank ? tap * c.channels + r : (r / bank * taps + tap) * bank + r % bank))] = true;
    return Matrix(c.channels, cols, bank, 0.8, Values::i8, &used);
}

// Any convolution, one of each channel alone, one of all with a sum, a pool and every second pixel: against plain sums.
void check_own(const IntegerLevel &level) {
    const int64_t bank = draw(0, 1) ? 16 : 32, first = draw(1, 40), rows = draw(1, 150), last = rows;
    Conv one = {1, first, draw(4, 9), draw(4, 20), 1, 1, 1, 1, 0, 0, 1, 1, {}, {}, {}};
    Conv two = {1,          rows,       one.height, one.width,  draw(1, 5), draw(1, 5), draw(1, 3), draw(1, 3),
                draw(0, 2), draw(0, 2), draw(1, 2), draw(1, 2), {},         {},         {}};
    two.more_y = draw(0, 1), two.more_x = draw(0, 1);
    if (rows < bank && !level.turned) two.more_y = two.more_x = 0;
    if (two.out_height() < 2 || two.out_width() < 2) return;
    Conv three = {1, rows, two.out_height(), two.out_width(), 1, 1, 1, 1, 0, 0, 1, 1, {}, {}, {}};
    const Matrix a = conv_matrix(one, rows, bank), b = own_matrix(two, bank), c = conv_matrix(three, last, bank);
    const Floats bias(150), x(first * one.height * one.width);
    const Grid grids[] = {fixed_grid(-1.0f, 2.0f), fixed_grid(-3.0f, 5.0f), fixed_grid(0.0f, 6.0f)};
    const Grid *fixed[3];
    for (int i = 0; i < 3; ++i) fixed[i] = draw(0, 2) ? &grids[i] : nullptr;
    const float cap = draw(0, 1) ? 0.5f : std::numeric_limits<float>::infinity();
    const bool relu = draw(0, 1), added = draw(0, 1), biased[] = {draw(0, 1) == 1, draw(0, 1) == 1};
    const std::vector<float> zeros(150);
    const float *add[] = {biased[0] ? bias.at.get() : zeros.data(), biased[1] ? bias.at.get() : zeros.data()};
    IntegerProgram program(portable_level(), level);
    const auto matrix = [](const Matrix &m) { return std::make_shared<const IntegerMatrix>(m.packed, m.scales()); };
    program.input(first, one.height, one.width);
    program.conv(matrix(a), bank, one, bias.at.get(), relu, cap, fixed[0], 0, -1);
    program.conv(matrix(b), bank, two, biased[0] ? add[0] : nullptr, relu, cap, fixed[1], 1, -1);
    program.conv(matrix(c), bank, three, biased[1] ? add[1] : nullptr, false, cap, fixed[2], 2, added ? 2 : -1);
    program.max_pool(2, 2, 1, 2, 3);
    program.thin(2, 2, 1, 2, 3);
    program.finish({4, 5, 2});
    int64_t pool[3], thin[3];
    program.shape(4, pool), program.shape(5, thin);
    std::vector<float> pooled(size_t(pool[0] * pool[1] * pool[2])), thinned(size_t(thin[0] * thin[1] * thin[2]));
    const int64_t h = three.height, w = three.width;
    std::vector<float> middle(size_t(rows * h * w));
    const std::vector<float> image(x.at.get(), x.at.get() + first * one.height * one.width);
    const std::vector<float> before = PlainConv{one, bank, a, bias.at.get(), relu, cap, fixed[0]}(image, nullptr);
    for (int threads : {1, 3}) {
        program.run(1, {x.at.get(), pooled.data(), thinned.data(), middle.data()}, threads);
        const auto same = [&](float found, float exact) {
            if (exact != found) compare("convolution of own channels", level.name, found, exact, 0.0);
        };
        const std::vector<float> own = PlainConv{two, bank, b, add[0], relu, cap, fixed[1]}(before, nullptr);
        for (size_t i = 0; i < own.size(); ++i) same(middle[i], own[i]);
        const std::vector<float> end =
            PlainConv{three, bank, c, add[1], false, cap, fixed[2]}(own, added ? own.data() : nullptr);
        const auto at = [&](int64_t k, int64_t i, int64_t j) { return end[size_t((k * h + i) * w + j)]; };
        for (int64_t i = 0; i < int64_t(pooled.size()); ++i) {
            const int64_t k = i / (pool[1] * pool[2]), r = i / pool[2] % pool[1], q = i % pool[2] * 2;
            same(pooled[size_t(i)],
                 std::fmax(std::fmax(at(k, r, q), at(k, r, q + 1)), std::fmax(at(k, r + 1, q), at(k, r + 1, q + 1))));
        }
        for (int64_t i = 0; i < int64_t(thinned.size()); ++i) {
            const int64_t k = i / (thin[1] * thin[2]) - 1, r = i / thin[2] % thin[1] * 2, q = i % thin[2] * 2;
            same(thinned[size_t(i)], k < 0 || k >= last ? 0.0f : at(k, r, q));
        }
    }
}

}  // namespace
