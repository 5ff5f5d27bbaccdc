#include <algorithm>
#include <cstring>

#include "pool.h"
#include "run.h"

namespace prunus {
namespace kernels {
namespace {

constexpr int64_t block_bytes =
    26 << 10;  // inputs and weights of one block of columns: most of a 32 KB first-level cache
constexpr int64_t weight_bytes = sizeof(float) + sizeof(uint16_t);  // of a decoded weight: its value and its offset
constexpr int64_t sums_bytes = 384 << 10;  // sums that stay at hand: most of a 512 KB second-level cache
constexpr int64_t tiles_together = 6;      // that share what is decoded
constexpr int64_t tiles_of_blocks = 3;     // and where nothing is to be decoded: sums that stay nearer
constexpr int64_t chunk_slots = 1024, chunk_groups = 128;  // decoded at once, at most
constexpr int64_t kept_columns = 256;                      // of a block whose weights are kept decoded
constexpr int64_t segment_columns = 4096;                  // whose places fit 16 bits
constexpr int64_t work_per_thread = 100000;  // multiply-adds below which a second thread costs more than it brings

int64_t banks_in_segment(const Packed &p) { return segment_columns / p.bank; }

int useful_threads(const Packed &p, int64_t samples, int threads) {
    const int64_t work = p.slot_start[p.groups] * lanes * samples;
    return int(std::max<int64_t>(1, std::min<int64_t>(threads, work / work_per_thread)));
}

constexpr int64_t at_once = 12;  // samples the permute kernel takes in one go

// act(sum * scale + bias) of so many neighbouring rows.
inline void finish_rows(float *sum, int64_t first, int64_t rows, const Finish &f, float *out) {
    if (f.scale)
        for (int64_t r = 0; r < rows; ++r) sum[r] *= f.scale[first + r];
    if (f.bias)
        for (int64_t r = 0; r < rows; ++r) sum[r] += f.bias[first + r];
    if (f.relu)
        for (int64_t r = 0; r < rows; ++r) sum[r] = sum[r] < 0.0f ? 0.0f : sum[r];
    std::memcpy(out, sum, size_t(rows) * sizeof(float));
}

void permute_groups(const Level &level, const Packed &p, const Ready *ready, int64_t g0, int64_t g1, const float *x,
                    int64_t ldx, int samples, float *y, const Finish &f) {
    float sums[at_once * lanes];
    uint8_t *tables = nullptr;
    int64_t stride = 0, made_for = -1, made_slots = -1;
    for (int64_t g = g0; g < g1; ++g) {
        const int64_t slots = p.slots(g), first = g * lanes, rows = std::min(lanes, p.rows - first);
        if (level.table_bytes && !(ready && ready->quads) && (p.schedule_start[g] != made_for || slots != made_slots)) {
            stride = (slots + 1) / 2 * level.table_bytes * (p.bank / 16);
            tables = static_cast<uint8_t *>(scratch(Scratch::sums, stride * samples + 64));
            for (int n = 0; n < samples; ++n)
                level.prepare(p.schedule + p.schedule_start[g], slots, p.bank, x + n * ldx, tables + n * stride);
            made_for = p.schedule_start[g], made_slots = slots;
        }
        level.permute(p, ready, g, x, ldx, tables, stride, samples, sums);
        for (int n = 0; n < samples; ++n) {
            float *sum = sums + n * lanes, *out = y + n * p.rows + first;
            if (rows == lanes)
                finish_rows(sum, first, lanes, f, out);
            else
                finish_rows(sum, first, rows, f, out);
        }
    }
}

void linear_permute(const Level &level, const Packed &p, Places &places, const float *x, int64_t ldx, int64_t batch,
                    float *y, const Finish &f, int threads) {
    const int64_t padded = p.banks() * p.bank;
    if (padded != p.cols) {  // the last bank is read in full
        float *copy = static_cast<float *>(scratch(Scratch::padded, padded * batch * int64_t(sizeof(float))));
        for (int64_t n = 0; n < batch; ++n) {
            std::memcpy(copy + n * padded, x + n * ldx, size_t(p.cols) * sizeof(float));
            std::fill(copy + n * padded + p.cols, copy + (n + 1) * padded, 0.0f);
        }
        x = copy, ldx = padded;
    }
    const Ready *ready = places.ready(level, p);
    threads = useful_threads(p, batch * 2, threads);
    const int64_t tasks = std::min<int64_t>(p.groups, threads > 1 ? threads * 4 : 1);
    parallel(threads, tasks, [&](int64_t task) {
        const int64_t g0 = p.groups * task / tasks, g1 = p.groups * (task + 1) / tasks;
        for (int64_t n = 0; n < batch; n += at_once)
            permute_groups(level, p, ready, g0, g1, x + n * ldx, ldx, int(std::min(at_once, batch - n)), y + n * p.rows,
                           f);
    });
}

// The slots of some neighbouring groups that lie in one block of columns, decoded where need be.
struct Chunk {
    int64_t first, last;  // groups
    const uint16_t *places[chunk_groups];
    const float *values[chunk_groups];
    int64_t slots[chunk_groups];
};

// A few tiles of samples through the groups [g0, g1): block of columns after block, so that the inputs stay in the
// first-level cache, and a chunk of groups at a time, so that what is decoded serves all tiles.
struct TileJob {
    const Level &level;
    const Packed &p;
    const Blocks *blocks;  // null: to be decoded
    const Columns &columns;
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
        const int64_t inputs = ld * p.bank * int64_t(sizeof(float)), segment = banks_in_segment(p);
        const int64_t weights = p.slot_start[p.groups] * lanes * weight_bytes / std::max<int64_t>(1, p.groups * banks);
        const int64_t fitting = std::min(segment, std::max<int64_t>(1, block_bytes / (inputs + weights)));
        const int64_t block = blocks ? blocks->banks : fitting;
        const int64_t acc_size = groups * lanes * ld, xt_size = block * p.bank * level.width;
        const int64_t room = std::max(chunk_slots, block * p.bank);
        float *acc = static_cast<float *>(scratch(Scratch::sums, tiles * acc_size * int64_t(sizeof(float))));
        float *xt = static_cast<float *>(scratch(Scratch::inputs, (v1 - v0) * xt_size * int64_t(sizeof(float))));
        int64_t *cursor = static_cast<int64_t *>(scratch(Scratch::cursors, groups * int64_t(sizeof(int64_t))));
        std::fill(cursor, cursor + groups, int64_t(0));
        Chunk chunk;
        int64_t b = 0;
        do {  // once without columns too: sums start there
            const int64_t last_bank = std::min({banks, b + block, (b / segment + 1) * segment});
            const int64_t c = b * p.bank, count = std::min(p.cols, last_bank * p.bank) - c;
            for (int64_t v = v0; v < v1; ++v) {
                const int64_t n = v * level.width;
                level.to_tile(x + n * ldx + c, ldx, std::min<int64_t>(batch - n, level.width), count,
                              xt + (v - v0) * xt_size);
            }
            const int64_t skipped = b % segment * p.bank * level.width;
            for (chunk.last = g0; chunk.last < g1;) {
                if (blocks)
                    find(chunk, b / block);
                else
                    take(chunk, cursor, last_bank, room);
                for (int64_t t = 0; t < tiles; ++t)
                    multiply(chunk, t, b == 0, xt, xt_size, skipped, acc + t * acc_size);
            }
            b = last_bank;
        } while (b < banks);
        for (int64_t t = 0; t < tiles; ++t) end(t, acc + t * acc_size);
    }

    // The next chunk of what is kept in blocks.
    void find(Chunk &chunk, int64_t block) const {
        const int64_t *start = blocks->start + block * p.groups;
        chunk.first = chunk.last, chunk.last = std::min(g1, chunk.first + chunk_groups);
        for (int64_t g = chunk.first; g < chunk.last; ++g) {
            const int64_t number = g - chunk.first;
            const uint8_t *at = blocks->at + start[g] * beside_bytes;
            chunk.values[number] = reinterpret_cast<const float *>(at);
            chunk.places[number] = reinterpret_cast<const uint16_t *>(at + lanes * sizeof(float));
            chunk.slots[number] = start[g + 1] - start[g];
        }
    }

    // The next chunk: as many groups as there is room for.
    void take(Chunk &chunk, int64_t *cursor, int64_t last_bank, int64_t room) const {
        uint16_t *new_places =
            static_cast<uint16_t *>(scratch(Scratch::places, room * lanes * int64_t(sizeof(uint16_t))));
        float *new_values = nullptr;
        if (p.kind != Values::f32)
            new_values = static_cast<float *>(scratch(Scratch::values, room * lanes * int64_t(sizeof(float))));
        int64_t used = 0, last = 0, number = 0;
        chunk.first = chunk.last;
        for (int64_t g = chunk.first; g < g1 && number < chunk_groups; ++g, ++number) {
            const int32_t *schedule = p.schedule + p.schedule_start[g];
            const int64_t first = cursor[g - g0], slots = p.slots(g);
            const bool same = number > 0 && p.schedule_start[g] == p.schedule_start[g - 1] && slots == p.slots(g - 1);
            if (!same)  // groups of a balanced mask share one schedule, and with it where the block ends
                for (last = first; last < slots && schedule[last] < last_bank;) ++last;
            if (used + last - first > room) break;
            level.decode(p, columns, g, first, last, new_places + used * lanes);
            chunk.places[number] = new_places + used * lanes;
            chunk.values[number] = level.values(p, g, first, last, new_values + used * lanes);
            chunk.slots[number] = last - first;
            used += last - first;
            cursor[g - g0] = last;
        }
        chunk.last = chunk.first + number;
    }

    // `skipped`: floats of the segment before the block, which `xt` does not hold.
    void multiply(const Chunk &chunk, int64_t tile, bool fresh, const float *xt, int64_t xt_size, int64_t skipped,
                  float *acc) const {
        const int64_t first = begin(tile), count = begin(tile + 1) - first, ld = count * level.width;
        const float *parts[max_parts];
        for (int64_t v = 0; v < count; ++v) {
            const uintptr_t block = reinterpret_cast<uintptr_t>(xt + (first - v0 + v) * xt_size);
            parts[v] = reinterpret_cast<const float *>(block - uintptr_t(skipped) * sizeof(float));
        }
        Tile t = {};
        t.x = parts, t.fresh = fresh, t.start = f.scale ? nullptr : f.bias, t.vectors = int(count);
        t.beside = blocks != nullptr;
        for (int64_t g = chunk.first; g < chunk.last; ++g) {
            const int64_t number = g - chunk.first;
            t.slots = chunk.slots[number];
            if (t.slots == 0 && !fresh) continue;
            t.acc = acc + (g - g0) * lanes * ld, t.first_row = g * lanes,
            t.rows = std::min(lanes, p.rows - t.first_row);
            t.narrow = chunk.places[number], t.values = chunk.values[number];
            level.tile(t);
        }
    }

    void end(int64_t tile, float *acc) const {
        const int64_t first = g0 * lanes, rows = std::min(g1 * lanes, p.rows) - first, ld = vectors(tile) * level.width;
        if (f.scale || f.relu) {
            const Run all = {0, 0, 0, ld};
            const float *scale = f.scale ? f.scale + first : nullptr;
            const float *bias = f.scale && f.bias ? f.bias + first : nullptr;
            level.finish({.finish = {.bias = bias, .scale = scale, .other = nullptr, .relu = f.relu},
                          .acc = acc,
                          .ld = ld,
                          .rows = rows,
                          .plane = ld,
                          .other_plane = 0,
                          .runs = &all,
                          .count = 1,
                          .out = acc});
        }
        level.from_tile(acc, ld, rows, samples(tile), y + sample(tile) * p.rows + first, p.rows);
    }
};

void linear_tile(const Level &level, const Packed &p, Places &cache, const float *x, int64_t ldx, int64_t batch,
                 float *y, const Finish &finish, int threads) {
    const int64_t banks = p.banks(), segment = banks_in_segment(p);
    uint32_t *base = static_cast<uint32_t *>(scratch(Scratch::bases, banks * int64_t(sizeof(uint32_t))));
    for (int64_t b = 0; b < banks; ++b) base[b] = uint32_t(b % segment * p.bank * level.width);
    const Columns columns = {base, uint32_t(level.width), nullptr};
    const Blocks *blocks = cache.blocks(level, p, finish.scale, columns, std::min(segment, kept_columns / p.bank));
    Finish f = finish;
    if (blocks) f.scale = nullptr;  // it is in the weights
    const int64_t vectors = (batch + level.width - 1) / level.width;
    const int64_t tiles = (vectors + level.max_vectors - 1) / level.max_vectors;
    const int64_t together = blocks ? tiles_of_blocks : tiles_together;
    const int64_t sets = (tiles + together - 1) / together;
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
        TileJob{level,
                p,
                blocks,
                columns,
                f,
                x,
                ldx,
                batch,
                y,
                vectors * t0 / tiles,
                vectors * t1 / tiles,
                t1 - t0,
                p.groups * part / parts,
                p.groups * (part + 1) / parts}
            .run();
    });
}

}  // namespace

bool permutes(const Level &level, const Packed &p, int64_t batch) {
    if (p.groups == 0 || p.bank > level.permute_bank || batch > (level.permute_up_to * 16 + p.bank / 2) / p.bank)
        return false;
    // Tables for larger banks pay only if all groups use the same ones.
    return p.bank == 16 || p.schedule_start[0] == p.schedule_start[p.groups - 1];
}

void linear(const Level &level, const Packed &p, Places &places, const float *x, int64_t ldx, int64_t batch, float *y,
            const Finish &f, int threads, Choice choice) {
    if (batch == 0 || p.rows == 0) return;
    const bool can = p.bank <= level.permute_bank;
    if (choice == Choice::automatic ? permutes(level, p, batch) : choice == Choice::permute && can)
        linear_permute(level, p, places, x, ldx, batch, y, f, threads);
    else
        linear_tile(level, p, places, x, ldx, batch, y, f, threads);
}

}  // namespace kernels
}  // namespace prunus
