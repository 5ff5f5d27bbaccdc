// The packed layout that every kernel reads, and the table of functions one instruction set offers.
//
// Rows are taken sixteen at a time (a group). A slot is one kept weight of each of the group's sixteen rows, all from
// the same bank of columns, so `values` is [slot][16 lanes] and one schedule entry (the bank's number) serves a slot.
// A row that has no weight left for a slot holds the value zero there. `index` gives the column inside the bank as
// [packet][16 lanes] bytes: for banks of up to 16 columns a packet serves two slots, the even one in the low four bits
// and the odd one in the high four; for larger banks it serves one. Groups with the same sequence of banks share one
// schedule.
#pragma once

#include <cstdint>
#include <limits>

namespace prunus {
namespace kernels {

constexpr int64_t lanes = 16;
constexpr int max_parts = 4;  // registers of samples in any tile

enum class Values : int { f32 = 0, bf16 = 1, i8 = 2 };

struct Packed {
    int64_t rows, cols, bank, groups;
    Values kind;
    const void *values;
    const uint8_t *index;
    const int32_t *schedule;        // banks, ascending within a group
    const int64_t *schedule_start;  // [groups]
    const int64_t *slot_start;      // [groups + 1]
    const int64_t *packet_start;    // [groups + 1]

    int64_t per_packet() const { return bank <= 16 ? 2 : 1; }
    int64_t slots(int64_t group) const { return slot_start[group + 1] - slot_start[group]; }
    int64_t banks() const { return (cols + bank - 1) / bank; }
};

// The weights again, in the order of a permute kernel that asks for them (`Level::ready`). For banks of 16, by group.
//
// In pairs of slots: four float32 values of the even slot beside those of the odd one, and so on; the index stays where
// it is. Narrower values come after their indices, one byte each, the even slot's before the odd one's and the rows as
// `ready_row` says: bfloat16 as eight values of the even slot beside eight of the odd one, int8 as they are.
//
// In quads, where all weights of a slot lie within four neighbouring columns (2:4 and 1:4 masks): for every sixteen slots
// a word for each row, two bits for each slot, and sixteen numbers, where each slot's four columns begin. Values stay where
// they are, and no tables are needed.
struct Ready {
    const uint8_t *at;
    const int64_t *start;  // [groups], in bytes
    bool quads;
};
constexpr int64_t quad_slots = 16, quad_bytes = quad_slots * 4 + lanes * 4;

// Which row stands at a place of a pair's indices, and of a quad's words: rows stand in the order in which their values
// are widened.
constexpr int64_t ready_row(Values kind, int64_t place) {
    if (kind == Values::bf16) return place / 8 * 8 + place % 4 * 2 + place / 4 % 2;
    return kind == Values::i8 ? place % 4 * 4 + place / 4 : place;
}
constexpr int64_t quad_row(Values kind, int64_t place) {
    return kind == Values::bf16 ? place % 8 * 2 + place / 8 : place;
}

// Where column j of bank b lies in the input, in floats: base[b] + j * stride, or table[b * bank + j] where given.
struct Columns {
    const uint32_t *base;
    uint32_t stride;
    const uint32_t *table;
};

// What happens to a finished sum: act(sum * scale + bias + other).
struct Finish {
    const float *bias;   // [rows] or null
    const float *scale;  // [rows] or null: per-row scales of int8 values
    const float *other;  // added before the activation, laid out like the output; or null
    bool relu;
    float cap = std::numeric_limits<float>::infinity();  // the most that a ReLU lets through
};

// Where finished sums go when every register of a tile is a run of pixels: out[register] + row * plane. What is added
// stands at other[register] instead of finish.other. Without a scale the sums began at the bias.
struct Direct {
    Finish finish;
    float *out[max_parts];
    const float *other[max_parts];
    int64_t plane, other_plane;
};

constexpr int64_t beside_bytes = lanes * int64_t(sizeof(float) + sizeof(uint16_t));

// One group's share of one tile: acc[row][sample] += sum over some slots of value * x[column][sample].
struct Tile {
    const float *const *x;  // where each register of samples begins
    float *acc;
    bool fresh;          // the sums start at `start` instead of what acc holds
    const float *start;  // by row of the matrix; null: zero
    int64_t slots;
    int64_t rows;            // rows of the group that exist
    int64_t first_row;       // of the group
    int vectors;             // samples in the tile / width, 1 .. max_vectors
    const uint16_t *narrow;  // offsets of the inputs, 16 for each slot; null where they are wide
    const uint32_t *wide;
    const float *values;  // likewise
    bool beside;          // values and narrow offsets alternate: sixteen of the one, sixteen of the other
    const Direct *end;    // null: the sums go back to acc
};

// A run of pixels: where it begins in the tile, in the output's plane and in that of what is added, and how long it is.
struct Run {
    int64_t from, to, also, count;
};

// Where the sums of one tile go otherwise: acc[row][pixel] to out[row][pixel] for its runs, `finish` counted from the
// tile's first row.
struct Ending {
    Finish finish;
    const float *acc;
    int64_t ld, rows, plane, other_plane;
    const Run *runs;
    int64_t count;
    float *out;
};

// A window of an image: for each channel and each of `shifts` steps to the right, `rows` registers of pixels below each
// other, neighbours or every second one. The first pixel may lie outside of the image, and what does is zero.
struct Window {
    const float *from;
    int64_t plane, pitch, step;  // floats from channel to channel, row to row, shift to shift
    bool second;
    int64_t channels, shifts, rows;
    int64_t first_row, last_row, first_column, last_column;  // of the image, counted from the window's first pixel
};
constexpr int64_t max_shifts = 16;

// One channel of a convolution that reads no other: out[y][x] = act(scale * sum of weight[t] * in[y * step + x + at[t]] +
// bias + other[y][x]), every register of pixels readable in full.
struct Depthwise {
    const float *in;
    int64_t step;  // from row to row of the output
    int64_t taps;
    const float *weight;
    const int64_t *at;
    int64_t height, width;  // of the output
    Finish finish;          // of this channel
    float *out;
    int64_t pitch, other_pitch;  // from row to row
};

struct Level {
    const char *name;
    int width;        // floats in a register
    int max_vectors;  // registers of samples in the largest tile
    int permute_up_to;  // batches up to this size take the permute kernel with banks of 16; with larger banks smaller ones
    int permute_bank;  // the largest bank it can read
    void (*tile)(const Tile &);
    // Where the columns of the group's slots [first, last) lie: out[slot - first][16]. Narrow where 16 bits are enough.
    void (*decode)(const Packed &, const Columns &, int64_t group, int64_t first, int64_t last, uint16_t *out);
    void (*decode_wide)(const Packed &, const Columns &, int64_t group, int64_t first, int64_t last, uint32_t *out);
    // The group's values of the slots [first, last) as floats: in place, or written to `out`.
    const float *(*values)(const Packed &, int64_t group, int64_t first, int64_t last, float *out);
    // What the permute kernel reads in place of x: `table_bytes` for each pair of slots and sixteen columns of a bank
    // (none: it reads x itself).
    int table_bytes;
    void (*prepare)(const int32_t *schedule, int64_t slots, int64_t bank, const float *x, uint8_t *tables);
    bool ready;  // the permute kernel is faster with `Ready`
    // Sum of one group for `samples` rows of x (leading dimension ldx, every bank readable in full): out[sample][16].
    // With or without `ready` (may be null) the same bits.
    void (*permute)(const Packed &, const Ready *ready, int64_t group, const float *x, int64_t ldx,
                    const uint8_t *tables, int64_t table_stride, int samples, float *out);
    // x (up to `width` samples x cols, leading dimension ldx) -> out[cols][width], missing samples zero.
    void (*to_tile)(const float *x, int64_t ldx, int64_t samples, int64_t cols, float *out);
    // acc[rows][ld] -> y (samples x rows, leading dimension ldy).
    void (*from_tile)(const float *acc, int64_t ld, int64_t rows, int64_t samples, float *y, int64_t ldy);
    void (*finish)(const Ending &);
    void (*copy)(const float *from, int64_t count, float *to);
    void (*copy_second)(const float *from, int64_t count, float *to);  // to[i] = from[2 * i]
    // out[channel][shift][row][width], channels `pitch` apart, shifts `room` rows.
    void (*window)(const Window &, int64_t pitch, int64_t room, float *out);
    void (*depthwise)(const Depthwise &);
    // The machine's limits, for `explain`: read `count` floats; run `count` rounds of 12 independent multiply-adds.
    float (*read)(const float *from, int64_t count);
    float (*multiply)(int64_t count);
};

const Level &portable_level();
const Level &avx2_level();
const Level &avx512_level();
const Level &neon_level();

}  // namespace kernels
}  // namespace prunus
