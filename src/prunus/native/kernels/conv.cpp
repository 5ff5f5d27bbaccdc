// Two-dimensional convolution as a sparse matrix times pixels: the tile kernel with pixels in the lanes.
//
// The image is copied once into planes, one for each channel and each phase of the stride, padded with zeros, so that
// one (tap, channel) is one plane read at a fixed distance, and neighbouring output pixels are neighbours in it. Where the
// output's width is a multiple of the register's, each register of a tile takes its own part of a row; otherwise pixels
// are counted over whole plane rows, and the few between two rows of the image are computed and dropped. With stride one
// the padding on the right of a row is that on the left of the next. A 1x1 convolution reads the image itself.
//
// A register of pixels that begins anywhere mostly lies across two lines of the cache and costs two loads. So a layer
// that has many weights for each input copies a window of the image instead of planes: for one register of pixels across
// and a few down, each channel's rows at each shift a tap has, aligned and side by side. The zeros around the image come
// from masked loads.
#include <algorithm>
#include <cstdint>

#include "conv.h"
#include "image.h"
#include "pool.h"

namespace prunus {
namespace kernels {
namespace {

constexpr int64_t block_bytes = 20 << 10;   // inputs of one block of channels, read where they lie
constexpr int64_t window_bytes = 20 << 10;  // and copied to a window
// Kept weights for each column from which a window pays: beside planes that would have to be made, and beside an image
// that could be read in place.
constexpr double uses_of_window = 2.5, uses_beside_image = 4.5;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Rows of the image that so many pixels below each other read.
int64_t window_rows(const Conv &c, int64_t pixels) {
    return (pixels - 1) * c.stride_y + c.dilation_y * (c.kernel_y - 1) + 1;
}

// Whether inputs are used often enough to be copied to where they are aligned and close together. A tile is then one
// register wide, so that taps above each other share what is copied.
bool takes_windows(const Level &level, const Packed &p, const Conv &c, const Geometry &g, double uses) {
    const int64_t across = divide_up(g.out_w, level.width) * level.width, rows = window_rows(c, level.max_vectors);
    const int64_t bytes = std::min(c.channels, p.bank) * c.kernel_x * rows * level.width * int64_t(sizeof(float));
    const bool fits = c.kernel_x <= max_shifts && bytes <= window_bytes;
    const bool fills = g.out_h >= level.max_vectors && 4 * across <= 5 * g.out_w;  // few lanes without a pixel
    return c.stride_x <= 2 && g.taps > 1 && fits && fills &&
           double(p.slot_start[p.groups] * lanes) >= uses * double(p.cols);
}

Geometry geometry(const Level &level, const Packed &p, const Conv &c) {
    Geometry g = {};
    g.out_h = c.out_height(), g.out_w = c.out_width(), g.taps = c.kernel_y * c.kernel_x;
    const int64_t reach_y = c.dilation_y * (c.kernel_y - 1), reach_x = c.dilation_x * (c.kernel_x - 1);
    g.phases_y = std::min(c.stride_y, reach_y + 1), g.phases_x = std::min(c.stride_x, reach_x + 1);
    const int64_t shift_y = reach_y / c.stride_y, shift_x = reach_x / c.stride_x;
    const bool whole = c.channels < p.bank || c.channels % p.bank == 0, single = c.stride_y == 1 && c.stride_x == 1;
    g.plane_rows = g.out_h + shift_y;
    const bool even = c.more_y == 0 && c.more_x == 0;
    const bool own_zeros =
        c.in.plane && single && whole && even && c.in.pad == c.pad_y && c.in.pad == c.pad_x && g.out_w <= c.in.pitch;
    if (takes_windows(level, p, c, g, own_zeros ? uses_beside_image : uses_of_window)) {
        g.windows = g.in_place = g.by_row = true;
        g.room = window_rows(c, level.max_vectors), g.across = divide_up(g.out_w, level.width);
        g.channels = c.channels, g.plane = c.kernel_x * g.room * level.width;
        g.pixels = g.out_h * g.across * level.width;
        return g;
    }
    // An image with the convolution's own zeros around it needs no copy.
    if (own_zeros) {
        g.pitch = c.in.pitch, g.plane = c.in.plane, g.channels = c.channels;
        g.pixels = (g.out_h - 1) * g.pitch + g.out_w;
        g.in_place = true, g.by_row = g.out_w % level.width == 0;
        return g;
    }
    g.pitch = c.stride_x == 1 ? std::max(c.width + c.pad_x + c.more_x, g.out_w) : g.out_w + shift_x;
    g.pixels = (g.out_h - 1) * g.pitch + g.out_w;
    // Nor does a 1x1 convolution without padding.
    g.in_place = !c.in.plane && g.taps == 1 && single && whole && even && c.pad_y == 0 && c.pad_x == 0 &&
                 g.pixels >= level.width * level.max_vectors;
    g.by_row = !g.in_place && g.out_w % level.width == 0;
    g.channels = g.in_place || c.channels < p.bank ? c.channels : divide_up(c.channels, p.bank) * p.bank;
    const int64_t readable = divide_up(g.pixels, level.width) * level.width + shift_y * g.pitch + shift_x;
    g.plane = g.in_place ? g.pixels : divide_up(std::max(readable, g.plane_rows * g.pitch + c.pad_x), 16) * 16;
    return g;
}

// Where tap (ky, kx) of the first output pixel lies, relative to a channel's plane of phase (0, 0).
int64_t tap_offset(const Geometry &g, const Conv &c, int width, int64_t ky, int64_t kx) {
    if (g.windows) return (kx * g.room + ky * c.dilation_y) * width;
    const int64_t y = ky * c.dilation_y, x = kx * c.dilation_x;
    const int64_t phase = (y % c.stride_y) * g.phases_x + x % c.stride_x;
    return phase * g.channels * g.plane + (y / c.stride_y) * g.pitch + x / c.stride_x;
}

void copy_row(const Level &level, const Conv &c, const float *from, int64_t phase_x, int64_t pitch, float *to) {
    if (c.stride_x == 1) {
        for (int64_t j = 0; j < c.pad_x; ++j) to[j] = 0.0f;
        level.copy(from, c.width, to + c.pad_x);
        for (int64_t j = c.pad_x + c.width; j < pitch; ++j) to[j] = 0.0f;
        return;
    }
    if (c.stride_x == 2) {  // the common stride, without a test for each pixel
        const int64_t first = (c.pad_x - phase_x + 1) / 2, end = std::min(pitch, (c.width + c.pad_x - phase_x + 1) / 2);
        const int64_t begin = std::min(first, pitch);
        for (int64_t j = 0; j < begin; ++j) to[j] = 0.0f;
        level.copy_second(from + phase_x - c.pad_x + 2 * begin, end - begin, to + begin);
        for (int64_t j = std::max(begin, end); j < pitch; ++j) to[j] = 0.0f;
        return;
    }
    for (int64_t j = 0; j < pitch; ++j) {
        const int64_t x = j * c.stride_x + phase_x - c.pad_x;
        to[j] = x >= 0 && x < c.width ? from[x] : 0.0f;
    }
}

}  // namespace

ConvJob::ConvJob(const Level &level, const Packed &p, const Conv &c, const Finish &f, Places *places)
    : level_(level),
      p_(p),
      c_(c),
      f_(f),
      g_(geometry(level, p, c)),
      own_(places ? places->own([&] { return own_channels(level, p, c); }) : kept_own_) {
    if (!places) kept_own_ = own_channels(level, p, c);
    if (!own_.empty()) return;
    cut(!places);
    decode(places);
}

void *ConvJob::take(bool keep, Scratch use, int64_t bytes) {
    if (!keep) return scratch(use, bytes + 64);
    std::unique_ptr<char[]> &mine = kept_[int(use) - int(Scratch::bases)];
    mine.reset(new char[size_t(bytes + 128)]);
    return reinterpret_cast<void *>((reinterpret_cast<uintptr_t>(mine.get()) + 63) / 64 * 64);
}

// Offsets count from the first channel of their block; mostly they fit 16 bits then.
void ConvJob::decode(Places *places) {
    const bool keep = !places, table = c_.channels < p_.bank;
    const int64_t banks = p_.banks(), weights = p_.slot_start[p_.groups] * lanes, count = table ? p_.cols : banks;
    uint32_t *base =
        static_cast<uint32_t *>(take(false, Scratch::bases, banks * (table ? p_.bank : 1) * int64_t(sizeof(uint32_t))));
    int64_t farthest = 0;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t tap = table ? i / c_.channels : i % g_.taps;
        const int64_t channel = table ? i % c_.channels : i / g_.taps * p_.bank - i / step_ * block_channels();
        const int64_t at = tap_offset(g_, c_, level_.width, tap / c_.kernel_x, tap % c_.kernel_x) + channel * g_.plane;
        base[i] = uint32_t(at);
        farthest = std::max(farthest, at + (table ? 0 : (p_.bank - 1) * g_.plane));
    }
    const Columns columns = {base, uint32_t(g_.plane), table ? base : nullptr};
    const bool fits = farthest <= UINT16_MAX;
    narrow_ = fits && places ? places->of(level_, p_, columns, count) : nullptr;
    uint16_t *narrow = nullptr;
    uint32_t *wide = nullptr;
    if (!fits)
        wide = static_cast<uint32_t *>(take(keep, Scratch::places, weights * int64_t(sizeof(uint32_t))));
    else if (!narrow_)
        narrow_ = narrow = static_cast<uint16_t *>(take(keep, Scratch::places, weights * int64_t(sizeof(uint16_t))));
    wide_ = wide;
    float *decoded = nullptr;
    if (p_.kind != Values::f32)
        decoded = static_cast<float *>(take(keep, Scratch::values, weights * int64_t(sizeof(float))));
    for (int64_t q = 0; q < p_.groups; ++q) {
        const int64_t at = p_.slot_start[q] * lanes;
        if (narrow) level_.decode(p_, columns, q, 0, p_.slots(q), narrow + at);
        if (wide) level_.decode_wide(p_, columns, q, 0, p_.slots(q), wide + at);
        if (decoded) level_.values(p_, q, 0, p_.slots(q), decoded + at);
    }
    values_ = decoded ? decoded : static_cast<const float *>(p_.values);
}

void ConvJob::cut(bool keep) {
    const int64_t tile = level_.width * level_.max_vectors;
    const int64_t read = c_.kernel_y * (tile + c_.kernel_x * c_.dilation_x + 16);  // floats of a channel, for one tile
    const int64_t bytes = (g_.windows ? g_.plane : read) * p_.bank * int64_t(sizeof(float)), banks = p_.banks();
    const int64_t fit = std::max<int64_t>(1, (g_.windows ? window_bytes : block_bytes) / bytes),
                  whole = divide_up(banks, g_.taps);
    step_ = c_.channels < p_.bank ? std::max<int64_t>(1, banks) : g_.taps * divide_up(whole, divide_up(whole, fit));
    blocks_ = std::max<int64_t>(1, divide_up(banks, step_));
    int64_t *cuts =
        static_cast<int64_t *>(take(keep, Scratch::cursors, p_.groups * (blocks_ + 1) * int64_t(sizeof(int64_t))));
    for (int64_t q = 0; q < p_.groups; ++q) {
        const int32_t *schedule = p_.schedule + p_.schedule_start[q];
        int64_t *out = cuts + q * (blocks_ + 1), s = 0;
        for (int64_t b = 0; b < blocks_; ++b) {
            out[b] = s;
            while (s < p_.slots(q) && schedule[s] < (b + 1) * step_) ++s;
        }
        out[blocks_] = p_.slots(q);
    }
    cuts_ = cuts;
}

int64_t ConvJob::block_channels() const { return c_.channels < p_.bank ? c_.channels : step_ / g_.taps * p_.bank; }

int64_t ConvJob::work() const { return (p_.slot_start[p_.groups] * lanes + p_.rows + c_.channels) * g_.pixels; }
int64_t ConvJob::in_size() const { return c_.channels * plane_size(c_.in, c_.height, c_.width); }
int64_t ConvJob::out_size() const { return p_.rows * plane_size(c_.out, g_.out_h, g_.out_w); }
int64_t ConvJob::other_size() const { return p_.rows * plane_size(c_.other, g_.out_h, g_.out_w); }

void ConvJob::make_plane(const float *x, int64_t channel, float *planes) const {
    const float *from = x + channel * plane_size(c_.in, c_.height, c_.width);
    for (int64_t py = 0; py < g_.phases_y; ++py)
        for (int64_t px = 0; px < g_.phases_x; ++px) {
            float *plane = planes + ((py * g_.phases_x + px) * g_.channels + channel) * g_.plane;
            for (int64_t i = 0; i < g_.plane_rows; ++i) {
                const int64_t y = i * c_.stride_y + py - c_.pad_y;
                float *row = plane + i * g_.pitch;
                if (y >= 0 && y < c_.height && channel < c_.channels)  // those that fill up the last bank stay zero
                    copy_row(level_, c_, from + pixel(c_.in, c_.width, y, 0), px, g_.pitch, row);
                else
                    std::fill(row, row + g_.pitch, 0.0f);
            }
            std::fill(plane + g_.plane_rows * g_.pitch, plane + g_.plane, 0.0f);
        }
}

int64_t ConvJob::vectors() const { return divide_up(g_.by_row ? g_.out_h * g_.out_w : g_.pixels, level_.width); }
int64_t ConvJob::tiles() const {
    return g_.windows ? divide_up(g_.out_h, level_.max_vectors) * g_.across : divide_up(vectors(), level_.max_vectors);
}

// The inputs of a block of channels for `rows` output pixels below each other, and a register of them across.
void ConvJob::fill_window(int64_t block, int64_t row, int64_t rows, int64_t column, const float *x, float *out) const {
    const int64_t plane = plane_size(c_.in, c_.height, c_.width), pitch = c_.in.plane ? c_.in.pitch : c_.width;
    const int64_t first = block * block_channels(), needed = window_rows(c_, rows);
    const int64_t top = row * c_.stride_y - c_.pad_y, left = column * c_.stride_x - c_.pad_x;
    const int64_t first_row = std::min(needed, std::max<int64_t>(0, -top));
    const int64_t channels = std::min(block_channels(), c_.channels - first);
    std::fill(out + channels * g_.plane, out + block_channels() * g_.plane, 0.0f);  // those that fill up the last bank
    level_.window({x + first * plane + pixel(c_.in, c_.width, top, left), plane, pitch, c_.dilation_x, c_.stride_x == 2,
                   channels, c_.kernel_x, needed, first_row, std::max(first_row, std::min(needed, c_.height - top)),
                   -left, c_.width - left},
                  g_.plane, g_.room, out);
}

// One tile of pixels for the rows of the groups [g0, g1).
void ConvJob::run_tile(int64_t tile, int64_t g0, int64_t g1, const float *planes, const float *other, float *y) const {
    const int64_t width = level_.width, across = g_.windows ? g_.across : 1, column = tile % across * width;
    const int64_t all = g_.windows ? g_.out_h : vectors(), sets = tiles() / across;
    const int64_t v0 = all * (tile / across) / sets, v1 = all * (tile / across + 1) / sets, ld = (v1 - v0) * width;
    const bool direct = g_.windows ? column + width <= g_.out_w : g_.by_row;
    const float *parts[max_parts];
    const int64_t plane = plane_size(c_.out, g_.out_h, g_.out_w),
                  other_plane = plane_size(c_.other, g_.out_h, g_.out_w);
    const float *start = f_.scale ? nullptr : f_.bias, *bias = f_.scale ? f_.bias : nullptr;
    Direct end = {.finish = {.bias = bias, .scale = f_.scale, .other = nullptr, .relu = f_.relu, .cap = f_.cap},
                  .out = {},
                  .other = {},
                  .plane = plane,
                  .other_plane = other_plane};
    Run few[max_parts], *runs = nullptr;
    float *window = nullptr;
    int64_t count = 0;
    if (g_.windows) {
        window = static_cast<float *>(scratch(Scratch::window, block_channels() * g_.plane * int64_t(sizeof(float))));
        runs = few;
        for (int64_t v = v0; v < v1; ++v) {
            const int64_t to = pixel(c_.out, g_.out_w, v, column), also = pixel(c_.other, g_.out_w, v, column);
            parts[v - v0] = window + (v - v0) * c_.stride_y * width;
            end.out[v - v0] = y + to;
            end.other[v - v0] = other ? other + also : nullptr;
            runs[count++] = {(v - v0) * width, to, also, g_.out_w - column};
        }
    } else if (g_.by_row) {
        for (int64_t v = v0; v < v1; ++v) {
            const int64_t row = v * width / g_.out_w, column = v * width % g_.out_w;
            parts[v - v0] = planes + row * g_.pitch + column;
            end.out[v - v0] = y + pixel(c_.out, g_.out_w, row, column);
            end.other[v - v0] = other ? other + pixel(c_.other, g_.out_w, row, column) : nullptr;
        }
    } else {
        const int64_t first = v0 * width, last = std::min(v1 * width, g_.pixels);
        const bool bare = g_.in_place && !c_.in.plane;
        const int64_t start = bare ? std::min(first, g_.pixels - ld) : first;  // never read past the image
        for (int64_t v = 0; v < v1 - v0; ++v) parts[v] = planes + start + v * width;
        runs = static_cast<Run *>(scratch(Scratch::runs, (ld + 2) * int64_t(sizeof(Run))));
        count = flat_runs(start, first, last, runs);
    }
    float *acc = static_cast<float *>(scratch(Scratch::sums, (g1 - g0) * lanes * ld * int64_t(sizeof(float))));
    for (int64_t b = 0; b < blocks_; ++b) {
        if (g_.windows)
            fill_window(b, v0, v1 - v0, column, planes, window);
        else
            for (int64_t v = 0; b > 0 && v < v1 - v0; ++v) parts[v] += block_channels() * g_.plane;
        for (int64_t q = g0; q < g1; ++q) {
            const int64_t *cut = cuts_ + q * (blocks_ + 1) + b;
            const bool last_block = b == blocks_ - 1;
            if (cut[0] == cut[1] && b > 0 && !(last_block && direct)) continue;
            const int64_t at = (p_.slot_start[q] + cut[0]) * lanes, rows = std::min(lanes, p_.rows - q * lanes);
            level_.tile({.x = parts,
                         .acc = acc + (q - g0) * lanes * ld,
                         .fresh = b == 0,
                         .start = start,
                         .slots = cut[1] - cut[0],
                         .rows = rows,
                         .first_row = q * lanes,
                         .vectors = int(v1 - v0),
                         .narrow = narrow_ ? narrow_ + at : nullptr,
                         .wide = wide_ ? wide_ + at : nullptr,
                         .values = values_ + at,
                         .end = last_block && direct ? &end : nullptr});
        }
    }
    if (direct) return;
    const int64_t row = g0 * lanes, rows = std::min(g1 * lanes, p_.rows) - row;
    const auto from_row = [row](const float *all, int64_t step) { return all ? all + row * step : nullptr; };
    level_.finish({.finish = {.bias = from_row(bias, 1),
                              .scale = from_row(f_.scale, 1),
                              .other = from_row(other, other_plane),
                              .relu = f_.relu,
                              .cap = f_.cap},
                   .acc = acc,
                   .ld = ld,
                   .rows = rows,
                   .plane = plane,
                   .other_plane = other_plane,
                   .runs = runs,
                   .count = count,
                   .out = y + row * plane});
}

// Which pixels of a tile are real, where pixels are counted over whole plane rows.
int64_t ConvJob::flat_runs(int64_t start, int64_t first, int64_t last, Run *runs) const {
    int64_t count = 0;
    for (int64_t at = first; at < last; at = (at / g_.pitch + 1) * g_.pitch) {
        const int64_t row = at / g_.pitch, column = at % g_.pitch;
        if (column >= g_.out_w) continue;
        const int64_t length = std::min(last, row * g_.pitch + g_.out_w) - at;
        runs[count++] = {at - start, pixel(c_.out, g_.out_w, row, column), pixel(c_.other, g_.out_w, row, column),
                         length};
    }
    return count;
}

void ConvJob::image(const float *x, const float *other, float *y, int threads) const {
    threads = useful_threads(threads, work(), float_work);
    clear_border(c_.out, p_.rows, g_.out_h, g_.out_w, y);
    if (!own_.empty()) return by_channel(x, other, y, threads);
    if (!g_.in_place) {  // the planes stay in the second-level cache
        const int64_t bytes = g_.phases_y * g_.phases_x * g_.channels * g_.plane * int64_t(sizeof(float));
        float *planes = static_cast<float *>(scratch(Scratch::inputs, bytes));
        const int64_t parts = threads > 1 ? std::min<int64_t>(g_.channels, 2 * threads) : 1;
        parallel(threads, parts, [&](int64_t part) {
            for (int64_t k = g_.channels * part / parts; k < g_.channels * (part + 1) / parts; ++k)
                make_plane(x, k, planes);
        });
        x = planes;
    }
    // Few tiles are cut by rows too, so that threads end together; each part copies its windows again.
    const int64_t tasks = (g_.windows ? 4 : 8) * threads,
                  parts = threads > 1 ? std::min(p_.groups, divide_up(tasks, tiles())) : 1;
    // Tiles beside each other share lines of the output, which two threads had better not write at the same time: each
    // begins in its own part of the image.
    const int64_t count = tiles() * parts, stretch = divide_up(count, threads);
    parallel(threads, stretch * threads, [&](int64_t turn) {
        const int64_t task = turn % threads * stretch + turn / threads, part = task % parts;
        if (task < count) run_tile(task / parts, p_.groups * part / parts, p_.groups * (part + 1) / parts, x, other, y);
    });
}

void conv(const Level &level, const Packed &p, Places &places, const Conv &c, const float *x, float *y, const Finish &f,
          int threads) {
    if (c.batch == 0 || p.rows == 0 || c.out_height() <= 0 || c.out_width() <= 0) return;
    const ConvJob job(level, p, c, f, &places);
    const auto run = [&](int64_t n, int inside) {
        job.image(x + n * job.in_size(), f.other ? f.other + n * job.other_size() : nullptr, y + n * job.out_size(),
                  inside);
    };
    parallel_images(useful_threads(threads, job.work() * c.batch, float_work), c.batch, run);
}

}  // namespace kernels
}  // namespace prunus
