// Two-dimensional convolution as a sparse matrix times pixels: the tile kernel with pixels in the lanes.
//
// The image is copied once into planes, one for each channel and each phase of the stride, padded with zeros, so that
// one (tap, channel) is one plane read at a fixed distance, and neighbouring output pixels are neighbours in it. Where the
// output's width is a multiple of the register's, each register of a tile takes its own part of a row; otherwise pixels
// are counted over whole plane rows, and the few between two rows of the image are computed and dropped. With stride one
// the padding on the right of a row is that on the left of the next. A 1x1 convolution reads the image itself.
#include <algorithm>
#include <cstring>

#include "pool.h"
#include "run.h"

namespace prunus {
namespace kernels {
namespace {

constexpr int64_t block_bytes = 20 << 10;
constexpr int64_t work_per_thread = 100000;

struct Geometry {
    int64_t out_h, out_w, taps;
    int64_t phases_y, phases_x;    // phases of the stride that some tap reads
    int64_t pitch, plane_rows, plane;  // floats between rows, rows, floats between planes
    int64_t pixels;                // counted over whole rows
    int64_t channels;              // planes of one phase: channels, rounded up to whole banks
    bool direct;                   // the image itself serves as planes
    bool by_row;                   // registers never cross from one row of the output to the next
};

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

Geometry geometry(const Level &level, const Packed &p, const Conv &c) {
    Geometry g;
    g.out_h = c.out_height(), g.out_w = c.out_width(), g.taps = c.kernel_y * c.kernel_x;
    const int64_t reach_y = c.dilation_y * (c.kernel_y - 1), reach_x = c.dilation_x * (c.kernel_x - 1);
    g.phases_y = std::min(c.stride_y, reach_y + 1), g.phases_x = std::min(c.stride_x, reach_x + 1);
    const int64_t shift_y = reach_y / c.stride_y, shift_x = reach_x / c.stride_x;
    g.pitch = c.stride_x == 1 ? std::max(c.width + c.pad_x, g.out_w) : g.out_w + shift_x;
    g.plane_rows = g.out_h + shift_y;
    g.pixels = (g.out_h - 1) * g.pitch + g.out_w;
    const int64_t whole = level.width * level.max_vectors;
    g.direct = g.taps == 1 && c.stride_y == 1 && c.stride_x == 1 && c.pad_y == 0 && c.pad_x == 0 && g.pixels >= whole &&
               (c.channels < p.bank || c.channels % p.bank == 0);
    const bool padded = c.in.plane > 0;
    g.direct = g.direct && !padded;
    g.by_row = !g.direct && g.out_w % level.width == 0;
    g.channels = g.direct || c.channels < p.bank ? c.channels : divide_up(c.channels, p.bank) * p.bank;
    const int64_t readable = divide_up(g.pixels, level.width) * level.width + shift_y * g.pitch + shift_x;
    if (padded) {
        g.pitch = c.in.pitch, g.plane = c.in.plane, g.channels = c.channels;
        g.pixels = (g.out_h - 1) * g.pitch + g.out_w;
        return g;
    }
    g.plane = g.direct ? g.pixels : divide_up(std::max(readable, g.plane_rows * g.pitch + c.pad_x), 16) * 16;
    return g;
}

// Where tap (ky, kx) of the first output pixel lies, relative to a channel's plane of phase (0, 0).
int64_t tap_offset(const Geometry &g, const Conv &c, int64_t ky, int64_t kx) {
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
        int64_t j = 0;
        for (; j < std::min(first, pitch); ++j) to[j] = 0.0f;
        const float *at = from + phase_x - c.pad_x;
        for (; j < end; ++j) to[j] = at[2 * j];
        for (; j < pitch; ++j) to[j] = 0.0f;
        return;
    }
    for (int64_t j = 0; j < pitch; ++j) {
        const int64_t x = j * c.stride_x + phase_x - c.pad_x;
        to[j] = x >= 0 && x < c.width ? from[x] : 0.0f;
    }
}

void make_planes(const Level &level, const Geometry &g, const Conv &c, const float *image, int64_t channel, float *planes) {
    const float *from = image + channel * c.height * c.width;
    for (int64_t py = 0; py < g.phases_y; ++py)
        for (int64_t px = 0; px < g.phases_x; ++px) {
            float *plane = planes + ((py * g.phases_x + px) * g.channels + channel) * g.plane;
            for (int64_t i = 0; i < g.plane_rows; ++i) {
                const int64_t y = i * c.stride_y + py - c.pad_y;
                float *row = plane + i * g.pitch;
                if (y >= 0 && y < c.height && channel < c.channels)  // those that fill up the last bank stay zero
                    copy_row(level, c, from + y * c.width, px, g.pitch, row);
                else
                    std::fill(row, row + g.pitch, 0.0f);
            }
            std::fill(plane + g.plane_rows * g.pitch, plane + g.plane, 0.0f);
        }
}

// Everything about a layer that does not change from tile to tile, decoded once for the call.
struct Job {
    const Level &level;
    const Packed &p;
    const Conv &c;
    const Finish &f;
    Geometry g;
    uint32_t *offsets;
    const float *values;
    int64_t *cuts;  // [groups][blocks + 1]: which slots of a group belong to a block of channels
    int64_t blocks;

    Job(const Level &level, const Packed &p, const Conv &c, const Finish &f)
        : level(level), p(p), c(c), f(f), g(geometry(level, p, c)) {
        const bool table = c.channels < p.bank;
        const int64_t banks = p.banks(), slots = p.slot_start[p.groups];
        uint32_t *base = static_cast<uint32_t *>(scratch(3, (banks * (table ? p.bank : 1) + 1) * int64_t(sizeof(uint32_t))));
        for (int64_t i = 0; i < (table ? p.cols : banks); ++i) {
            const int64_t tap = table ? i / c.channels : i % g.taps;
            const int64_t channel = table ? i % c.channels : i / g.taps * p.bank;
            base[i] = uint32_t(tap_offset(g, c, tap / c.kernel_x, tap % c.kernel_x) + channel * g.plane);
        }
        const Columns columns = {base, uint32_t(g.plane), table ? base : nullptr};
        offsets = static_cast<uint32_t *>(scratch(5, slots * lanes * int64_t(sizeof(uint32_t)) + 64));
        float *decoded = p.kind == Values::f32 ? nullptr
                                               : static_cast<float *>(scratch(6, slots * lanes * int64_t(sizeof(float)) + 64));
        for (int64_t q = 0; q < p.groups; ++q) {
            const int64_t at = p.slot_start[q] * lanes;
            level.decode(p, columns, q, 0, p.slots(q), offsets + at);
            if (decoded) level.values(p, q, 0, p.slots(q), decoded + at);
        }
        values = decoded ? decoded : static_cast<const float *>(p.values);
        cut(table);
    }

    void cut(bool table) {
        const int64_t tile = level.width * level.max_vectors;
        const int64_t bytes = c.kernel_y * (tile + c.kernel_x * c.dilation_x + 16) * int64_t(sizeof(float));
        const int64_t banks = p.banks();
        const int64_t step = table ? banks : g.taps * std::max<int64_t>(1, block_bytes / (p.bank * bytes));
        blocks = std::max<int64_t>(1, divide_up(banks, step));
        cuts = static_cast<int64_t *>(scratch(4, p.groups * (blocks + 1) * int64_t(sizeof(int64_t)) + 64));
        for (int64_t q = 0; q < p.groups; ++q) {
            const int32_t *schedule = p.schedule + p.schedule_start[q];
            int64_t *out = cuts + q * (blocks + 1), s = 0;
            for (int64_t b = 0; b < blocks; ++b) {
                out[b] = s;
                while (s < p.slots(q) && schedule[s] < (b + 1) * step) ++s;
            }
            out[blocks] = p.slots(q);
        }
    }

    int64_t vectors() const { return divide_up(g.by_row ? g.out_h * g.out_w : g.pixels, level.width); }
    int64_t tiles() const { return divide_up(vectors(), level.max_vectors); }

    void run_tile(int64_t tile, const float *planes, int64_t image, float *y) const {
        const int64_t v0 = vectors() * tile / tiles(), v1 = vectors() * (tile + 1) / tiles(), width = level.width;
        const int64_t ld = (v1 - v0) * width;
        const float *parts[max_parts];
        const int64_t plane = out_plane(c.out), other_plane = out_plane(c.other);
        float *out = y + image * p.rows * plane;
        const float *other = f.other ? f.other + image * p.rows * other_plane : nullptr;
        Direct end = {{}, {}, plane, other_plane, f.scale, f.bias, f.relu};
        Run *runs = static_cast<Run *>(scratch(7, (ld + 2) * int64_t(sizeof(Run))));
        int64_t count = 0;
        if (g.by_row) {
            for (int64_t v = v0; v < v1; ++v) {
                const int64_t row = v * width / g.out_w, column = v * width % g.out_w;
                parts[v - v0] = planes + row * g.pitch + column;
                end.out[v - v0] = out + place(c.out, row, column);
                end.other[v - v0] = other ? other + place(c.other, row, column) : nullptr;
            }
        } else {
            const int64_t first = v0 * width, last = std::min(v1 * width, g.pixels);
            const int64_t start = g.direct ? std::min(first, g.pixels - ld) : first;  // never read past the image
            for (int64_t v = 0; v < v1 - v0; ++v) parts[v] = planes + start + v * width;
            count = flat_runs(start, first, last, runs);
        }
        float *acc = static_cast<float *>(scratch(1, p.groups * lanes * ld * int64_t(sizeof(float))));
        for (int64_t b = 0; b < blocks; ++b)
            for (int64_t q = 0; q < p.groups; ++q) {
                const int64_t *cut = cuts + q * (blocks + 1) + b;
                const bool last_block = b == blocks - 1;
                if (cut[0] == cut[1] && b > 0 && !(last_block && g.by_row)) continue;
                const int64_t at = (p.slot_start[q] + cut[0]) * lanes, rows = std::min(lanes, p.rows - q * lanes);
                level.tile({parts, acc + q * lanes * ld, b == 0, cut[1] - cut[0], rows, q * lanes, int(v1 - v0), offsets + at,
                            values + at, last_block && g.by_row ? &end : nullptr});
            }
        if (!g.by_row) level.finish({acc, ld, p.rows, plane, other_plane, runs, count, f.scale, f.bias, other, f.relu, out});
    }

    int64_t out_plane(const Layout &to) const { return to.plane ? to.plane : g.out_h * g.out_w; }

    int64_t place(const Layout &to, int64_t row, int64_t column) const {
        return to.plane ? (row + to.pad) * to.pitch + to.pad + column : row * g.out_w + column;
    }

    Run run(int64_t from, int64_t row, int64_t column, int64_t count) const {
        return {from, place(c.out, row, column), place(c.other, row, column), count};
    }

    // Which pixels of a tile are real, where pixels are counted over whole plane rows.
    int64_t flat_runs(int64_t start, int64_t first, int64_t last, Run *runs) const {
        int64_t count = 0;
        for (int64_t at = first; at < last; at = (at / g.pitch + 1) * g.pitch) {
            const int64_t row = at / g.pitch, column = at % g.pitch;
            if (column < g.out_w) runs[count++] = run(at - start, row, column, std::min(last, row * g.pitch + g.out_w) - at);
        }
        return count;
    }

    // The zeros around one image of the output.
    void clear_padding(int64_t image, float *y) const {
        const Layout &to = c.out;
        if (!to.plane) return;
        for (int64_t r = 0; r < p.rows; ++r) {
            float *plane = y + (image * p.rows + r) * to.plane;
            std::fill(plane, plane + place(to, 0, 0), 0.0f);
            for (int64_t row = 0; row + 1 < g.out_h; ++row)
                for (int64_t i = place(to, row, g.out_w); i < place(to, row + 1, 0); ++i) plane[i] = 0.0f;
            std::fill(plane + place(to, g.out_h - 1, g.out_w), plane + to.plane, 0.0f);
        }
    }
};

}  // namespace

void conv(const Level &level, const Packed &p, const Conv &c, const float *x, float *y, const Finish &f, int threads) {
    if (c.batch == 0 || p.rows == 0 || c.out_height() <= 0 || c.out_width() <= 0) return;
    const Job job(level, p, c, f);
    const Geometry &g = job.g;
    const int64_t work = (p.slot_start[p.groups] * lanes + p.rows + c.channels) * g.pixels * c.batch;
    threads = int(std::max<int64_t>(1, std::min<int64_t>(threads, work / work_per_thread)));
    const bool in_place = g.direct || c.in.plane > 0;
    const int64_t image_size = c.channels * (c.in.plane ? c.in.plane : c.height * c.width);
    const int64_t bytes = g.phases_y * g.phases_x * g.channels * g.plane * int64_t(sizeof(float));
    if (threads == 1 || c.batch >= 2 * threads) {  // an image is a task: its planes stay in the second-level cache
        parallel(threads, c.batch, [&](int64_t n) {
            const float *image = x + n * image_size;
            float *planes = nullptr;
            job.clear_padding(n, y);
            if (!in_place) {
                planes = static_cast<float *>(scratch(2, bytes));
                for (int64_t k = 0; k < g.channels; ++k) make_planes(level, g, c, image, k, planes);
            }
            for (int64_t t = 0; t < job.tiles(); ++t) job.run_tile(t, in_place ? image : planes, n, y);
        });
        return;
    }
    for (int64_t n = 0; n < c.batch; ++n) {
        const float *image = x + n * image_size;
        float *planes = nullptr;
        job.clear_padding(n, y);
        if (!in_place) {
            planes = static_cast<float *>(scratch(2, bytes));
            const int64_t parts = std::min<int64_t>(g.channels, 2 * threads);
            parallel(threads, parts, [&](int64_t part) {
                for (int64_t k = g.channels * part / parts; k < g.channels * (part + 1) / parts; ++k)
                    make_planes(level, g, c, image, k, planes);
            });
        }
        parallel(threads, job.tiles(), [&](int64_t t) { job.run_tile(t, in_place ? image : planes, n, y); });
    }
}

}  // namespace kernels
}  // namespace prunus
