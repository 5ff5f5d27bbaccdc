#include <algorithm>
#include <cstring>

#include "pool.h"
#include "run.h"

namespace prunus {
namespace kernels {
namespace {

constexpr int64_t block_bytes = 26 << 10;  // inputs and weights of one block of columns: most of a 32 KB first-level cache
constexpr int64_t weight_bytes = sizeof(float) + sizeof(uint16_t);  // of a decoded weight: its value and its offset
constexpr int64_t sums_bytes = 384 << 10;  // sums that stay at hand: most of a 512 KB second-level cache
constexpr int64_t tiles_together = 4;      // that share what is decoded
constexpr int64_t chunk_slots = 1024, chunk_groups = 128;  // decoded at once, at most
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

// The slots of some neighbouring groups that lie in one block of columns, decoded.
struct Chunk {
    int64_t first, last;  // groups
    int64_t start[chunk_groups + 1];
    const float *values[chunk_groups];
    uint16_t *offsets;
};

// A few tiles of samples through the groups [g0, g1): block of columns after block, so that the inputs stay in the
// first-level cache, and a chunk of groups at a time, so that what is decoded serves all tiles.
struct TileJob {
    const Level &level;
    const Packed &p;
    const Finish &f;
    const float *x;
    int64_t ldx, batch;
    float *y;
    int64_t v0, v1, tiles;  // registers of samples, and into how many tiles they are cut
    int64_t g0, g1;

    int64_t begin(int64_t tile) const { return v0 + (v1 - v0) * tile / tiles; }
    int vectors(int64_t tile) const { return int(begin(tile + 1) - begin(tile)); }
    int64_t sample(int64_t tile) const { return begin(tile) * level.width; }
    int64_t samples(int64_t tile) const { return std::min(batch, sample(tile + 1)) - sample(tile); }

    void run() const {
        const int64_t ld = (v1 - v0 + tiles - 1) / tiles * level.width, groups = g1 - g0, banks = p.banks();
        const int64_t inputs = ld * p.bank * int64_t(sizeof(float));
        const int64_t weights = p.slot_start[p.groups] * lanes * weight_bytes / std::max<int64_t>(1, p.groups * banks);
        const int64_t block = std::max<int64_t>(1, block_bytes / (inputs + weights));
        const int64_t acc_size = groups * lanes * ld, xt_size = block * p.bank * ld;
        float *acc = static_cast<float *>(scratch(1, tiles * acc_size * int64_t(sizeof(float))));
        float *xt = static_cast<float *>(scratch(2, tiles * xt_size * int64_t(sizeof(float))));
        uint32_t *base = static_cast<uint32_t *>(scratch(3, banks * int64_t(sizeof(uint32_t))));
        int64_t *cursor = static_cast<int64_t *>(scratch(4, groups * int64_t(sizeof(int64_t))));
        for (int64_t b = 0; b < banks; ++b) base[b] = uint32_t(b % block * p.bank * ld);
        std::fill(cursor, cursor + groups, int64_t(0));
        const Columns columns = {base, uint32_t(ld), nullptr};
        const int64_t room = std::max(chunk_slots, block * p.bank);
        Chunk chunk;
        for (int64_t b = 0; b == 0 || b < banks; b += block) {  // once without columns too: the first block starts the sums
            const int64_t last_bank = std::min(banks, b + block), c = b * p.bank, count = std::min(p.cols, last_bank * p.bank) - c;
            for (int64_t t = 0; t < tiles; ++t)
                level.to_tile(x + sample(t) * ldx + c, ldx, samples(t), count, ld, xt + t * xt_size);
            for (chunk.last = g0; chunk.last < g1;) {
                decode(chunk, cursor, columns, last_bank, room);
                for (int64_t t = 0; t < tiles; ++t) multiply(chunk, t, b == 0, xt + t * xt_size, acc + t * acc_size);
            }
        }
        for (int64_t t = 0; t < tiles; ++t) end(t, acc + t * acc_size);
    }

    // The next chunk: as many groups as there is room for.
    void decode(Chunk &chunk, int64_t *cursor, const Columns &columns, int64_t last_bank, int64_t room) const {
        chunk.offsets = static_cast<uint16_t *>(scratch(5, room * lanes * int64_t(sizeof(uint16_t))));
        float *decoded = static_cast<float *>(scratch(6, room * lanes * int64_t(sizeof(float))));
        chunk.first = chunk.last;
        int64_t used = 0, last = 0, number = 0;
        for (int64_t g = chunk.first; g < g1 && number < chunk_groups; ++g, ++number) {
            const int32_t *schedule = p.schedule + p.schedule_start[g];
            const int64_t first = cursor[g - g0], slots = p.slots(g);
            const bool same = number > 0 && p.schedule_start[g] == p.schedule_start[g - 1] && slots == p.slots(g - 1);
            if (!same)  // groups of a balanced mask share one schedule, and with it where the block ends
                for (last = first; last < slots && schedule[last] < last_bank;) ++last;
            if (used + last - first > room) break;
            level.decode(p, columns, g, first, last, chunk.offsets + used * lanes);
            chunk.values[number] = level.values(p, g, first, last, decoded + used * lanes);
            chunk.start[number] = used;
            used += last - first;
            cursor[g - g0] = last;
        }
        chunk.start[number] = used;
        chunk.last = chunk.first + number;
    }

    void multiply(const Chunk &chunk, int64_t tile, bool fresh, const float *xt, float *acc) const {
        const float *parts[max_parts];
        for (int v = 0; v < vectors(tile); ++v) parts[v] = xt + v * level.width;
        const int64_t ld = vectors(tile) * level.width;
        for (int64_t g = chunk.first; g < chunk.last; ++g) {
            const int64_t number = g - chunk.first, from = chunk.start[number], count = chunk.start[number + 1] - from;
            if (count == 0 && !fresh) continue;
            level.tile({parts, acc + (g - g0) * lanes * ld, fresh, f.scale ? nullptr : f.bias, count,
                        std::min(lanes, p.rows - g * lanes), g * lanes, vectors(tile), chunk.offsets + from * lanes,
                        nullptr, chunk.values[number], nullptr});
        }
    }

    void end(int64_t tile, float *acc) const {
        const int64_t first = g0 * lanes, rows = std::min(g1 * lanes, p.rows) - first, ld = vectors(tile) * level.width;
        if (f.scale || f.relu) {
            const Run all = {0, 0, 0, ld};
            const float *scale = f.scale ? f.scale + first : nullptr;
            const float *bias = f.scale && f.bias ? f.bias + first : nullptr;
            level.finish({acc, ld, rows, ld, 0, &all, 1, scale, bias, nullptr, f.relu, acc});
        }
        level.from_tile(acc, ld, rows, samples(tile), y + sample(tile) * p.rows + first, p.rows);
    }
};

void linear_tile(const Level &level, const Packed &p, const float *x, int64_t ldx, int64_t batch, float *y,
                 const Finish &f, int threads) {
    const int64_t vectors = (batch + level.width - 1) / level.width;
    const int64_t tiles = (vectors + level.max_vectors - 1) / level.max_vectors;
    const int64_t sets = (tiles + tiles_together - 1) / tiles_together;
    const int64_t set_bytes = (vectors + sets - 1) / sets * level.width * lanes * int64_t(sizeof(float));
    threads = useful_threads(p, batch, threads);
    // Rows are cut so that the sums stay in the second-level cache, and further where threads need more tasks. Each part
    // transposes the inputs again, which is cheap beside its rows. How samples are cut never depends on the threads.
    int64_t parts = std::max<int64_t>(1, (p.groups * set_bytes + sums_bytes / 2) / sums_bytes);
    if (threads > 1) parts = std::max<int64_t>(parts, (2 * threads + sets - 1) / sets);
    parts = std::min(parts, p.groups);
    parallel(threads, sets * parts, [&](int64_t task) {
        const int64_t set = task / parts, part = task % parts;
        const int64_t t0 = tiles * set / sets, t1 = tiles * (set + 1) / sets;
        TileJob{level, p, f, x, ldx, batch, y, vectors * t0 / tiles, vectors * t1 / tiles, t1 - t0,
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
