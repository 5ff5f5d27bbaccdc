// Random shapes and masks through every instruction set, against sums in double precision. Prints the number of cases;
// exits with 1 at the first disagreement. The tests compile it with SIMDe in place of AVX-512 (PRUNUS_EMULATE_AVX512),
// and sanitize.sh compiles it with the address and undefined-behaviour sanitizers.
#include <limits>

#include "block.h"
#include "checking.h"
#include "integer_checks.h"
#include "program.h"
#include "recurrent.h"
#include "run.h"

namespace {

void check_linear(const Level &level) {
    const bool large = draw(0, 39) == 0;
    const bool wide = draw(0, 19) == 0;  // more columns than 16 bits can place
    const int64_t rows = draw(1, large ? 300 : wide ? 20 : 70), batch = draw(1, large ? 120 : wide ? 30 : 80);
    const int64_t cols = wide ? draw(4000, 9000) : draw(1, large ? 600 : 200);
    const int64_t banks[] = {16, 32, 64, 128, 256};
    const bool quads = draw(0, 7) == 0;
    const Matrix m(rows, cols, banks[quads ? 0 : draw(0, 4)], std::pow(double(draw(0, 10)) / 10, 2), Values(draw(0, 2)),
                   nullptr, quads);
    const Floats x(batch * cols), bias(rows);
    std::unique_ptr<float[]> y(new float[size_t(batch * rows)]), again(new float[size_t(batch * rows)]);
    const bool relu = draw(0, 1);
    const Finish finish = {bias.at.get(), m.scales(), nullptr, relu};
    Places places;
    for (int choice = 0; choice < 3; ++choice) {
        linear(level, m.packed, places, x.at.get(), cols, batch, y.get(), finish, int(draw(1, 3)), Choice(choice));
        linear(level, m.packed, places, x.at.get(), cols, batch, again.get(), finish, int(draw(1, 3)), Choice(choice));
        if (std::memcmp(y.get(), again.get(), size_t(batch * rows) * sizeof(float)) != 0) {
            std::printf("linear on %s: other bits from what a layer keeps than at its first call\n", level.name);
            std::exit(1);
        }
        for (int64_t n = 0; n < batch; ++n)
            for (int64_t r = 0; r < rows; ++r) {
                double sum = bias.at[size_t(r)], size = std::fabs(sum);
                for (int64_t c = 0; c < cols; ++c) {
                    const double term = double(m.dense[size_t(r * cols + c)]) * x.at[size_t(n * cols + c)];
                    sum += term, size += std::fabs(term);
                }
                compare("linear", level.name, y[size_t(n * rows + r)], relu && sum < 0 ? 0.0 : sum, size);
            }
    }
}

// One head of attention against sums in double precision, from inputs that are exactly as large as they must be.
void check_attention(const BlockLevel &level, const char *name) {
    const int64_t queries = draw(1, 40), size = draw(1, 40), more = draw(0, 1) ? draw(0, 30) : 0, keys = queries + more;
    const bool causal = draw(0, 1), masked = draw(0, 1);
    const Floats q(queries * size), k(keys * size), v(keys * size), mask(queries * keys);
    std::unique_ptr<float[]> room(new float[size_t(attention_room(keys, size))]), y(new float[size_t(queries * size)]);
    const float scaling = 0.3f;
    const int64_t blind = masked ? draw(0, queries - 1) : -1;  // a query that sees nothing: zeros
    if (masked) std::fill_n(mask.at.get() + blind * keys, size_t(keys), -std::numeric_limits<float>::infinity());
    level.attend({q.at.get(), k.at.get(), v.at.get(), queries, keys, size, scaling, masked ? mask.at.get() : nullptr,
                  keys, causal, room.get(), y.get(), size});
    for (int64_t i = 0; i < queries; ++i) {
        const int64_t seen = causal ? more + i + 1 : keys;
        std::vector<double> weight(static_cast<size_t>(seen));
        double total = 0.0;
        for (int64_t j = 0; j < seen; ++j) {
            double score = 0.0;
            for (int64_t c = 0; c < size; ++c) score += double(q.at[size_t(i * size + c)]) * k.at[size_t(j * size + c)];
            total += weight[size_t(j)] = std::exp(score * scaling + (masked ? mask.at[size_t(i * keys + j)] : 0.0f));
        }
        for (int64_t c = 0; c < size; ++c) {
            double sum = 0.0;
            for (int64_t j = 0; j < seen && i != blind; ++j)
                sum += weight[size_t(j)] / total * v.at[size_t(j * size + c)];
            compare("attention", name, y[size_t(i * size + c)], sum, 10.0);
        }
    }
}

// Activations and norms against double precision, and a whole block for one and for several threads, byte for byte.
void check_block(const BlockLevel &level, const IntegerLevel &integers, const char *name) {
    const int64_t heads = draw(1, 3) * 2, size = draw(1, 6) * 2, width = draw(1, 40), inner = draw(1, 50),
                  key_heads = heads / 2;
    const Values kind = draw(0, 1) ? Values::i8 : Values::f32;
    const Matrix query(heads * size, width, 16, 0.4, kind), key(key_heads * size, width, 16, 0.4, kind);
    const Matrix out(width, heads * size, 16, 0.4, kind), up(inner, width, 16, 0.4, kind),
        down(width, inner, 16, 0.4, kind);
    std::vector<std::unique_ptr<IntegerMatrix>> made;
    std::vector<std::unique_ptr<Places>> places;
    const bool integer = kind == Values::i8 && draw(0, 1);
    const auto product = [&](const Matrix &m) {
        places.push_back(std::make_unique<Places>());
        if (integer) made.push_back(std::make_unique<IntegerMatrix>(m.packed, m.scales()));
        return Product{&m.packed, places.back().get(), m.scales(), nullptr, integer ? made.back().get() : nullptr};
    };
    const Floats weight(width), bias(width), turns(40 * size);
    const bool rms = draw(0, 1), before = draw(0, 1);
    const Norm norm = {weight.at.get(), rms ? nullptr : bias.at.get(), 1e-5f, rms};
    Block b{product(query),
            product(key),
            product(key),
            product(out),
            product(up),
            draw(0, 1) ? product(up) : Product{},
            product(down),
            norm,
            norm,
            before,
            Activation(draw(0, 3)),
            heads,
            key_heads,
            size,
            0.5f};
    const int64_t batch = draw(1, 3), length = draw(1, 40), tokens = batch * length;
    Sequence s{};
    s.batch = batch, s.length = length, s.causal = draw(0, 1);
    if (draw(0, 1)) s.cos = s.sin = turns.at.get();
    const Floats x(tokens * width);
    std::unique_ptr<float[]> one(new float[size_t(tokens * width)]), two(new float[size_t(tokens * width)]);
    encode({portable_level(), integers, level, 1}, b, s, x.at.get(), one.get());
    encode({portable_level(), integers, level, 3}, b, s, x.at.get(), two.get());
    for (int64_t i = 0; i < tokens * width; ++i) compare("block", name, two[size_t(i)], one[size_t(i)], 0.0);
    Floats values(draw(1, 30));
    std::unique_ptr<float[]> found(new float[size_t(values.size)]);
    std::copy(values.at.get(), values.at.get() + values.size, found.get());
    level.activate(Activation::gelu, found.get(), nullptr, values.size);
    for (int64_t i = 0; i < values.size; ++i) {
        const double exact = values.at[size_t(i)];
        compare("gelu", name, found[size_t(i)], 0.5 * exact * (1.0 + std::erf(exact / std::sqrt(2.0))), 1.0);
    }
}

// An LSTM or a GRU, forwards or backwards, against double precision, and for several threads byte for byte.
void check_recurrent(const BlockLevel &level, const IntegerLevel &integers, const char *name) {
    const bool lstm = draw(0, 1), backwards = draw(0, 1);
    const int64_t hidden = draw(1, 20), width = draw(1, 20), steps = draw(1, 5), batch = draw(1, 4),
                  gates = lstm ? 4 : 3;
    const Matrix first(gates * hidden, width, 16, 0.5, Values::f32),
        second(gates * hidden, hidden, 16, 0.5, Values::f32);
    Places places[2];
    const Floats bias(gates * hidden), x(steps * batch * width), h(batch * hidden), c(batch * hidden);
    const Recurrent r = {{&first.packed, &places[0], nullptr, bias.at.get(), nullptr},
                         {&second.packed, &places[1], nullptr, nullptr, nullptr},
                         lstm,
                         backwards};
    std::vector<float> out[2];
    for (int i = 0; i < 2; ++i) {
        Floats h0(h.size), c0(c.size);
        std::copy(h.at.get(), h.at.get() + h.size, h0.at.get()),
            std::copy(c.at.get(), c.at.get() + c.size, c0.at.get());
        out[i].resize(size_t(steps * batch * hidden));
        recur({portable_level(), integers, level, 1 + 2 * i}, r, x.at.get(), steps, batch, h0.at.get(),
              lstm ? c0.at.get() : nullptr, out[i].data(), hidden);
    }
    if (out[0] != out[1]) compare("threads of a recurrent layer", name, 0.0, 1.0, 0.0);
    std::vector<double> hs(h.at.get(), h.at.get() + h.size), cs(c.at.get(), c.at.get() + c.size);
    const auto sigmoid = [](double v) { return 1.0 / (1.0 + std::exp(-v)); };
    for (int64_t i = 0; i < steps; ++i) {
        const int64_t step = backwards ? steps - 1 - i : i;
        std::vector<double> next(hs);
        for (int64_t n = 0; n < batch; ++n)
            for (int64_t k = 0; k < hidden; ++k) {
                double in[4], own[4];
                for (int64_t g = 0; g < gates; ++g) {
                    const int64_t row = g * hidden + k;
                    in[g] = bias.at[size_t(row)], own[g] = 0.0;
                    for (int64_t j = 0; j < width; ++j)
                        in[g] +=
                            double(first.dense[size_t(row * width + j)]) * x.at[size_t((step * batch + n) * width + j)];
                    for (int64_t j = 0; j < hidden; ++j)
                        own[g] += double(second.dense[size_t(row * hidden + j)]) * hs[size_t(n * hidden + j)];
                }
                const size_t at = size_t(n * hidden + k);
                if (lstm) {
                    cs[at] = sigmoid(in[1] + own[1]) * cs[at] + sigmoid(in[0] + own[0]) * std::tanh(in[2] + own[2]);
                    next[at] = sigmoid(in[3] + own[3]) * std::tanh(cs[at]);
                } else {
                    const double fresh = std::tanh(in[2] + sigmoid(in[0] + own[0]) * own[2]),
                                 z = sigmoid(in[1] + own[1]);
                    next[at] = fresh + z * (hs[at] - fresh);
                }
                compare("recurrent", name, out[0][size_t((step * batch + n) * hidden + k)], next[at], 3.0);
            }
        hs = next;
    }
}

// Runs the convolution with a random choice of padded layouts, and checks that the padding of the output is zero.
std::vector<float> padded_conv(const Level &level, const Packed &p, Conv c, const Floats &x, const Finish &finish,
                               int64_t h, int64_t w) {
    const auto layout = [](int64_t pad, int64_t rows, int64_t columns) {
        const int64_t pitch = columns + pad;
        return Layout{pad, pitch, ((rows + 2 * pad) * pitch + pad + 32 + 15) / 16 * 16};
    };
    std::unique_ptr<float[]> padded_x;
    const float *from = x.at.get();
    if (draw(0, 1)) {  // zeros that are the convolution's own, so that it reads in place, or others
        c.in = layout(c.pad_x && draw(0, 1) ? c.pad_x : draw(1, 3), c.height, c.width);
        padded_x.reset(new float[size_t(c.batch * c.channels * c.in.plane)]());
        for (int64_t k = 0; k < c.batch * c.channels; ++k)
            for (int64_t i = 0; i < c.height * c.width; ++i)
                padded_x[size_t(k * c.in.plane + (i / c.width + c.in.pad) * c.in.pitch + c.in.pad + i % c.width)] =
                    x.at[size_t(k * c.height * c.width + i)];
        from = padded_x.get();
    }
    if (draw(0, 1)) c.out = layout(draw(1, 2), h, w);
    const int64_t plane = c.out.plane ? c.out.plane : h * w, planes = c.batch * p.rows;
    std::unique_ptr<float[]> y(new float[size_t(planes * plane)]);
    Places places;
    for (int call = int(draw(1, 3)); call > 0; --call) {  // what is kept from the second call on serves the third
        std::fill(y.get(), y.get() + planes * plane, 7.0f);
        conv(level, p, places, c, from, y.get(), finish, int(draw(1, 3)));
    }
    std::vector<float> result;
    for (int64_t k = 0; k < planes; ++k) {
        float *at = y.get() + k * plane;
        for (int64_t i = 0; i < h * w; ++i) {
            const int64_t place = c.out.plane ? (i / w + c.out.pad) * c.out.pitch + c.out.pad + i % w : i;
            result.push_back(at[place]);
            at[place] = 0.0f;
        }
        for (int64_t i = 0; i < plane; ++i) compare("padding", level.name, at[i], 0.0, 0.0);
    }
    return result;
}

void check_conv(const Level &level) {
    const bool large = draw(0, 15) == 0;  // whose offsets need more than 16 bits
    const bool own = draw(0, 2) == 0;     // every row reads its own channel alone
    const int64_t bank = draw(0, 1) ? 16 : 32, channels = draw(large ? 16 : 1, 40),
                  rows = own ? channels : draw(1, large ? 6 : 40);
    Conv c = {draw(1, 3), channels,   draw(1, 18), draw(1, 34), draw(1, 4), draw(1, 4), draw(1, 3), draw(1, 3),
              draw(0, 3), draw(0, 3), draw(1, 2),  draw(1, 2),  {},         {},         {}};
    if (draw(0, 1)) c.stride_y = c.stride_x = 1;  // so that tiles are windows, where weights are many
    if (large) c.batch = 1, c.height = draw(50, 90), c.width = draw(50, 90);
    if (draw(0, 3) == 0) c.kernel_y = c.kernel_x = c.stride_y = c.stride_x = 1, c.pad_y = c.pad_x = 0;
    if (draw(0, 1)) c.more_y = draw(0, 2), c.more_x = draw(0, 2);
    if (c.out_height() < 1 || c.out_width() < 1) return;
    const int64_t taps = c.kernel_y * c.kernel_x, blocks = (channels + bank - 1) / bank;
    const bool table = channels < bank;
    const int64_t cols = taps * (table ? channels : blocks * bank);
    const auto column = [&](int64_t tap, int64_t k) {
        return table ? tap * channels + k : (k / bank * taps + tap) * bank + k % bank;
    };
    // Channels that only fill up the last bank hold no weights.
    std::vector<bool> used(static_cast<size_t>((own ? rows : 1) * cols));
    for (int64_t k = 0; k < channels; ++k)
        for (int64_t tap = 0; tap < taps; ++tap) used[size_t((own ? k * cols : 0) + column(tap, k))] = true;
    const Matrix m(rows, cols, bank, draw(0, 1) ? 0.2 : 0.6, Values(draw(0, 2)), &used);
    const int64_t h = c.out_height(), w = c.out_width();
    const Floats x(c.batch * channels * c.height * c.width), bias(rows), other(c.batch * rows * h * w);
    const float cap = draw(0, 1) ? 0.5f : std::numeric_limits<float>::infinity();
    const Finish finish = {bias.at.get(), m.scales(), draw(0, 1) ? other.at.get() : nullptr, bool(draw(0, 1)), cap};
    std::vector<float> y = padded_conv(level, m.packed, c, x, finish, h, w);
    for (int64_t n = 0; n < c.batch; ++n)
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t p = 0; p < h * w; ++p) {
                const int64_t at = (n * rows + r) * h * w + p;
                const double added = finish.other ? double(finish.other[at]) : 0.0;
                double sum = bias.at[size_t(r)] + added, size = std::fabs(bias.at[size_t(r)]) + std::fabs(added) + 1e-3;
                for (int64_t k = 0; k < channels; ++k)
                    for (int64_t tap = 0; tap < taps; ++tap) {
                        const int64_t iy = p / w * c.stride_y + tap / c.kernel_x * c.dilation_y - c.pad_y;
                        const int64_t ix = p % w * c.stride_x + tap % c.kernel_x * c.dilation_x - c.pad_x;
                        if (iy < 0 || ix < 0 || iy >= c.height || ix >= c.width) continue;
                        const double term = double(m.dense[size_t(r * cols + column(tap, k))]) *
                                            x.at[size_t(((n * channels + k) * c.height + iy) * c.width + ix)];
                        sum += term, size += std::fabs(term);
                    }
                const double exact = finish.relu ? std::min(double(cap), std::max(0.0, sum)) : sum;
                compare("conv", level.name, y[size_t(at)], exact, size);
            }
}

// conv -> conv with the first added -> largest of 2x2, and beside it every second pixel with a channel of zeros on both
// sides: one program against the same steps taken one by one, byte for byte.
void check_program(const Level &level) {
    const int64_t channels = draw(0, 1) ? 16 : draw(1, 20), h = draw(2, 20), w = draw(2, 20), batch = draw(1, 4),
                  halo = draw(0, 1);
    const int64_t cols = 9 * (channels < 16 ? channels : (channels + 15) / 16 * 16);
    std::vector<bool> used(static_cast<size_t>(cols));
    for (int64_t i = 0; i < cols; ++i) used[size_t(i)] = channels < 16 || i / 144 * 16 + i % 16 < channels;
    const Matrix one(channels, cols, 16, draw(0, 1) ? 0.2 : 0.6, Values(draw(0, 2)), &used),
        two(channels, cols, 16, 0.2, Values::f32, &used);
    const Floats x(batch * channels * h * w), bias(channels);
    const Layout padded = {1, w + 1, ((h + 2) * (w + 1) + 1 + 32 + 15) / 16 * 16}, plain = {0, 0, 0};
    const Layout inside = halo ? padded : plain;
    const int64_t size = channels * h * w, step = channels * (halo ? padded.plane : h * w);
    const int64_t pool_h = h / 2, pool_w = w / 2, thin_h = (h + 1) / 2, thin_w = (w + 1) / 2;
    const int64_t pool_size = channels * pool_h * pool_w, thin_size = (channels + 2) * thin_h * thin_w;
    Conv c = {1, channels, h, w, 3, 3, 1, 1, 1, 1, 1, 1, {}, {}, {}};
    const Finish first = {bias.at.get(), one.scales(), nullptr, true}, second = {nullptr, nullptr, nullptr, false};
    const Place in = {0, 0, plain}, middle = {-1, 0, inside}, last = {-1, step, inside}, pool = {1, 0, plain},
                thin = {2, 0, plain};
    Program program(level, 2 * step, {size, pool_size, thin_size});
    c.out = inside;
    program.conv(one.packed, c, first, in, middle, nullptr);
    c.in = c.other = inside;
    program.conv(two.packed, c, second, middle, last, &middle);
    program.max_pool({channels, h, w}, 2, 2, 2, 2, last, pool);
    program.thin({channels, h, w}, 2, 2, 1, 1, last, thin);
    std::vector<float> y(size_t(batch * size)), z(y), pooled(size_t(batch * pool_size)),
        thinned(size_t(batch * thin_size));
    program.run(batch, {x.at.get(), pooled.data(), thinned.data()}, int(draw(1, 3)));
    c.batch = batch, c.in = c.out = c.other = plain;
    Places places, more;
    conv(level, one.packed, places, c, x.at.get(), y.data(), first, 1);
    conv(level, two.packed, more, c, y.data(), z.data(), {nullptr, nullptr, y.data(), false}, 1);
    const auto at = [&](int64_t plane, int64_t i, int64_t j) { return z[size_t((plane * h + i) * w + j)]; };
    for (int64_t n = 0; n < batch; ++n)
        for (int64_t k = 0; k < channels + 2; ++k) {
            const bool real = k > 0 && k <= channels;
            const int64_t plane = n * channels + k - 1;
            for (int64_t i = 0; i < thin_h * thin_w; ++i) {
                const float exact = real ? at(plane, i / thin_w * 2, i % thin_w * 2) : 0.0f;
                compare("thin", level.name, thinned[size_t((n * (channels + 2) + k) * thin_h * thin_w + i)], exact,
                        0.0);
            }
            for (int64_t i = 0; real && i < pool_h * pool_w; ++i) {
                const int64_t r = i / pool_w * 2, q = i % pool_w * 2;
                const float exact = std::fmax(std::fmax(at(plane, r, q), at(plane, r, q + 1)),
                                              std::fmax(at(plane, r + 1, q), at(plane, r + 1, q + 1)));
                compare("max pool", level.name, pooled[size_t(plane * pool_h * pool_w + i)], exact, 0.0);
            }
        }
}

}  // namespace

int main(int count, char **arguments) {
    const int cases = count > 1 ? std::atoi(arguments[1]) : 200;
    std::vector<const Level *> levels = {&portable_level()};
    std::vector<const IntegerLevel *> integers = {&portable_integers()};
    std::vector<std::pair<const BlockLevel *, const char *>> blocks = {{&portable_blocks(), "portable"}};
#ifdef __aarch64__
    levels.push_back(&neon_level()), integers.push_back(&neon_integers()), blocks.push_back({&neon_blocks(), "neon"});
#else
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        levels.push_back(&avx2_level()), integers.push_back(&avx2_integers());
        blocks.push_back({&avx2_blocks(), "avx2"});
    }
#ifdef PRUNUS_EMULATE_AVX512
    levels.push_back(&avx512_level());
    integers.push_back(&avx512_vnni_integers());
    integers.push_back(&avx_vnni_integers());
#else
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        levels.push_back(&avx512_level());
#endif
#endif
    for (const IntegerLevel *level : integers) {
        for (int i = 0; i < 5 * cases; ++i) check_integers(*level);
        for (int i = 0; i < cases; ++i) check_integer_conv(*level), check_mixed(*level), check_own(*level);
        std::printf("%s integers: %d cases and %d runs of convolutions are exact\n", level->name, 5 * cases, cases);
    }
    for (const auto &[level, name] : blocks) {
        const IntegerLevel &own = *integers[std::min<size_t>(integers.size() - 1, level != blocks[0].first)];
        for (int i = 0; i < cases; ++i)
            check_attention(*level, name), check_block(*level, own, name), check_recurrent(*level, own, name);
        std::printf("%s blocks: %d cases agree\n", name, cases);
    }
    for (const Level *level : levels) {
        for (int i = 0; i < cases; ++i) {
            check_linear(*level);
            check_conv(*level);
            check_program(*level);
        }
        std::printf("%s: %d linear and %d convolution cases agree\n", level->name, cases, cases);
    }
    return 0;
}
