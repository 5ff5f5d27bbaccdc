#include <algorithm>
#include <cstring>

#include "pool.h"
#include "run.h"

namespace prunus {
namespace kernels {
namespace {

constexpr int64_t tile_bytes = 16 << 10;      // inputs of one block of columns: half of a 32 KB first-level cache
constexpr int64_t work_per_thread = 100000;  // multiply-adds below which a second thread costs more than it brings

int useful_threads(const Packed &p, int64_t samples, int threads) {
    const int64_t work = p.slot_start[p.groups] * lanes * samples;
    return int(std::max<int64_t>(1, std::min<int64_t>(threads, work / work_per_thread)));
}

constexpr int64_t at_once = 12;  // samples the permute kernel takes in one go

void permute_groups(const Level &level, const Packed &p, int64_t g0, int64_t g1, const float *x, int64_t ldx,
                    int samples, float *y, const Finish &f) {
    float sums[at_once * lanes];
    uint8_t *tables = nullptr;
    int64_t stride = 0, made_for = -1, made_slots = -1;
    for (int64_t g = g0; g < g1; ++g) {
        const int64_t slots = p.slots(g), first = g * lanes, rows = std::min(lanes, p.rows - first);
        if (level.table_bytes && (p.schedule_start[g] != made_for || slots != made_slots)) {
            stride = (slots + 1) / 2 * level.table_bytes;
            tables = static_cast<uint8_t *>(scratch(1, stride * samples + 64));
            for (int n = 0; n < samples; ++n)
                level.prepare(p.schedule + p.schedule_start[g], slots, x + n * ldx, tables + n * stride);
            made_for = p.schedule_start[g], made_slots = slots;
        }
        level.permute(p, g, x, ldx, tables, stride, samples, sums);
        for (int n = 0; n < samples; ++n) {
            float *out = y + n * p.rows + first;
            const float *sum = sums + n * lanes;
            for (int64_t r = 0; r < rows; ++r) {
                float value = sum[r];
                if (f.scale) value *= f.scale[first + r];
                if (f.bias) value += f.bias[first + r];
                out[r] = f.relu && value < 0.0f ? 0.0f : value;
            }
        }
    }
}

void linear_permute(const Level &level, const Packed &p, const float *x, int64_t ldx, int64_t batch, float *y,
                    const Finish &f, int threads) {
    const int64_t padded = p.banks() * p.bank;
    if (padded != p.cols) {  // the last bank is read in full
        float *copy = static_cast<float *>(scratch(0, padded * batch * int64_t(sizeof(float))));
        for (int64_t n = 0; n < batch; ++n) {
            std::memcpy(copy + n * padded, x + n * ldx, size_t(p.cols) * sizeof(float));
            std::fill(copy + n * padded + p.cols, copy + (n + 1) * padded, 0.0f);
        }
        x = copy, ldx = padded;
    }
    threads = useful_threads(p, batch * 2, threads);
    const int64_t tasks = std::min<int64_t>(p.groups, threads > 1 ? threads * 4 : 1);
    parallel(threads, tasks, [&](int64_t task) {
        const int64_t g0 = p.groups * task / tasks, g1 = p.groups * (task + 1) / tasks;
        for (int64_t n = 0; n < batch; n += at_once)
            permute_groups(level, p, g0, g1, x + n * ldx, ldx, int(std::min(at_once, batch - n)), y + n * p.rows, f);
    });
}

// One tile of samples through the groups [g0, g1): block of columns after block, so that the inputs stay close.
struct TileJob {
    const Level &level;
    const Packed &p;
    const Finish &f;
    const float *x;
    int64_t ldx, samples;
    float *y;
    int vectors;
    int64_t g0, g1;

    void run() const {
        const int64_t ld = int64_t(vectors) * level.width, rows = (g1 - g0) * lanes, banks = p.banks();
        const int64_t block = std::max<int64_t>(1, tile_bytes / (ld * p.bank * int64_t(sizeof(float))));
        float *acc = static_cast<float *>(scratch(1, rows * ld * int64_t(sizeof(float))));
        float *xt = static_cast<float *>(scratch(2, block * p.bank * ld * int64_t(sizeof(float))));
        uint32_t *base = static_cast<uint32_t *>(scratch(3, banks * int64_t(sizeof(uint32_t))));
        int64_t *cursor = static_cast<int64_t *>(scratch(4, (g1 - g0) * int64_t(sizeof(int64_t))));
        const int64_t most = block * p.bank * lanes * int64_t(sizeof(float));
        uint32_t *offsets = static_cast<uint32_t *>(scratch(5, most));
        float *decoded = static_cast<float *>(scratch(6, most));
        for (int64_t b = 0; b < banks; ++b) base[b] = uint32_t(b % block * p.bank * ld);
        std::fill(cursor, cursor + (g1 - g0), int64_t(0));
        start(acc, ld);
        const Columns columns = {base, uint32_t(ld), nullptr};
        const float *parts[max_parts];
        for (int v = 0; v < vectors; ++v) parts[v] = xt + v * level.width;
        for (int64_t b = 0; b < banks; b += block) {
            const int64_t last_bank = std::min(banks, b + block), c = b * p.bank;
            level.to_tile(x + c, ldx, samples, std::min(p.cols, last_bank * p.bank) - c, ld, xt);
            int64_t last = 0;
            for (int64_t g = g0; g < g1; ++g) {
                const int32_t *schedule = p.schedule + p.schedule_start[g];
                const int64_t first = cursor[g - g0], slots = p.slots(g);
                const bool same = g > g0 && p.schedule_start[g] == p.schedule_start[g - 1] && slots == p.slots(g - 1);
                if (!same)  // groups of a balanced mask share one schedule, and with it where the block ends
                    for (last = first; last < slots && schedule[last] < last_bank;) ++last;
                cursor[g - g0] = last;
                if (last == first) continue;
                level.decode(p, columns, g, first, last, offsets);
                const float *values = level.values(p, g, first, last, decoded);
                const int64_t here = std::min(lanes, p.rows - g * lanes);
                level.tile({parts, acc + (g - g0) * lanes * ld, false, last - first, here, g * lanes, vectors, offsets, values, nullptr});
            }
        }
        end(acc, ld);
    }

    void start(float *acc, int64_t ld) const {
        for (int64_t r = 0; r < (g1 - g0) * lanes; ++r) {
            const int64_t row = g0 * lanes + r;
            const float first = f.bias && !f.scale && row < p.rows ? f.bias[row] : 0.0f;
            std::fill(acc + r * ld, acc + (r + 1) * ld, first);
        }
    }

    void end(float *acc, int64_t ld) const {
        const int64_t first = g0 * lanes, rows = std::min(g1 * lanes, p.rows) - first;
        if (f.scale || f.relu) {
            const Run all = {0, 0, 0, ld};
            const float *scale = f.scale ? f.scale + first : nullptr;
            const float *bias = f.scale && f.bias ? f.bias + first : nullptr;
            level.finish({acc, ld, rows, ld, 0, &all, 1, scale, bias, nullptr, f.relu, acc});
        }
        level.from_tile(acc, ld, rows, samples, y + first, p.rows);
    }
};

void linear_tile(const Level &level, const Packed &p, const float *x, int64_t ldx, int64_t batch, float *y,
                 const Finish &f, int threads) {
    const int64_t vectors = (batch + level.width - 1) / level.width;
    const int64_t tiles = (vectors + level.max_vectors - 1) / level.max_vectors;
    threads = useful_threads(p, batch, threads);
    // With few tiles the rows are split too; each part then transposes the inputs again, which is cheap beside its rows.
    const int64_t parts = threads > 1 && tiles < 4 * threads ? std::min<int64_t>(p.groups, (2 * threads + tiles - 1) / tiles) : 1;
    parallel(threads, tiles * parts, [&](int64_t task) {
        const int64_t tile = task / parts, part = task % parts;
        const int64_t v0 = vectors * tile / tiles, v1 = vectors * (tile + 1) / tiles;
        const int64_t n0 = v0 * level.width, samples = std::min(batch, v1 * level.width) - n0;
        TileJob{level, p, f, x + n0 * ldx, ldx, samples, y + n0 * p.rows, int(v1 - v0),
                p.groups * part / parts, p.groups * (part + 1) / parts}.run();
    });
}

}  // namespace

void linear(const Level &level, const Packed &p, const float *x, int64_t ldx, int64_t batch, float *y, const Finish &f,
            int threads, Choice choice) {
    if (batch == 0 || p.rows == 0) return;
    const bool permutes = p.bank == 16 && choice != Choice::tile && (choice == Choice::permute || batch <= level.permute_up_to);
    if (permutes)
        linear_permute(level, p, x, ldx, batch, y, f, threads);
    else
        linear_tile(level, p, x, ldx, batch, y, f, threads);
}

}  // namespace kernels
}  // namespace prunus
