// Integer products: int8 weights times inputs of seven bits, summed exactly in 32 bits.
//
// A token's inputs become bytes q = round(x / step) + zero, 0 .. 127, so a bank of 16 columns is one 16-byte table that
// a byte shuffle can look up. The kernels read the weights in an order of their own, made once from the packed layout:
// rows sixteen at a time (a group), and the group's kept weights in units of 64. A unit is 32 bytes of indices (two
// nibbles to a byte: the first register's in the low halves) and two registers of weights, which hold for each row
// four weights side by side, rows 0-3 and 8-11 in the first, 4-7 and 12-15 in the second:
//
//   quads    one bank that keeps four (or three) weights in a row: its table gives both registers at once
//   pairs    two banks of two: each gives two bytes for each row, which are then interleaved
//   crossed  four banks of one: two and two are looked up into every second byte, joined, then interleaved as pairs are
//   full     one bank that keeps (nearly) all its weights: four times the 64 bytes of weights, without any index
//
// A bank of seven is a quad and a quad with a hole; one of five a quad and a single. Every instruction set computes the
// same integers, and the same floats from them.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "format.h"

namespace prunus {
namespace kernels {

constexpr int64_t unit_bytes = 96, table = 16;
constexpr int64_t full_bytes = 256;      // of a full bank
constexpr int top = 127;                 // of a quantised input; 2 * 127 * 128 fits 16 bits
constexpr int64_t most_in_row = 133144;  // weights whose sum is sure to fit 32 bits
constexpr int64_t pixels_at_once = 32;   // of a convolution, in registers of 256 bits

struct IntegerTask;

struct IntegerGroup {
    int64_t start, place;  // where its units begin, in bytes, and its places
    int32_t full, quads, pairs, crossed;
    bool twin;  // the next group reads the same places
};

struct IntegerMatrix {
    int64_t rows = 0, cols = 0, banks = 0;  // banks of 16
    std::vector<IntegerGroup> groups;
    std::unique_ptr<uint8_t, void (*)(void *)> units;  // 64-byte aligned
    int64_t count = 0;                                 // of units; a full bank is four
    std::vector<int32_t> bank;                         // of each table: one for a full bank or a quad, two, four
    std::vector<int32_t> place;                        // the same as offsets in bytes: 16 * bank
    std::vector<int32_t> sum;                          // of each row's weights, rows in whole groups
    std::vector<float> scale;                          // likewise

    explicit IntegerMatrix(const Packed &, const float *scale);
    // Every weight that is not zero.
    void each(const std::function<void(int64_t row, int64_t column, int8_t value)> &) const;
    // What a task must know of one group; `places` stand for those of the matrix, and bias is that of all rows.
    void take(int64_t group, const int32_t *places, const float *bias, IntegerTask &) const;
};

// Inputs of one token: x is about step * (q - zero). A token with NaN or infinity has the step NaN, and so its results.
struct Step {
    float step;
    int32_t zero;
};

// How a token's range, which always contains zero, is cut into steps.
struct Grid {
    Step step;
    float inverse;
    bool flat;    // every byte is zero: nothing but zeros, numbers too small to be scaled, or none that are finite
    bool inside;  // the numbers to be cut are known to be finite and inside of the range
};

// `wild`: some number is not finite.
inline Grid grid_for(float low, float high, bool wild, bool inside = false) {
    if (wild) return {{std::numeric_limits<float>::quiet_NaN(), 0}, 0.0f, true, inside};
    const float step = high / float(top) - low / float(top);
    if (step < 1e-37f) return {{0.0f, 0}, 0.0f, true, inside};
    const float inverse = 1.0f / step;
    return {{step, int32_t(std::nearbyint(-low * inverse))}, inverse, false, inside};
}

// What becomes of numbers [lines][tokens][rows]: other is added, then the ReLU, then floats or bytes or both are written.
struct TokenEnd {
    const float *from;
    int64_t from_token;  // numbers from token to token; lines follow each other
    int64_t lines, tokens, rows;
    const float *other;  // null, or as `out` lies
    bool relu;
    float cap;
    float *out;  // may be null
    int64_t out_token, out_line;
    uint8_t *bytes;  // may be null
    int64_t byte_token, byte_line;
    const Grid *grid;
    bool *wild;
};

// Sixteen rows of some lines of tokens: act((sum - zero * rows' sum) * (step * scale) + bias). A line is a row of pixels;
// tokens of a linear layer are one line.
struct IntegerTask {
    const uint8_t *units;
    const int32_t *place;
    int32_t full, quads, pairs, crossed;
    const IntegerTask *twin;  // may be null: another group of the same single token, with the same places
    int64_t lines;
    int tokens;        // in a line
    const uint8_t *x;  // quantised, tokens `pitch` bytes apart, lines `line`
    int64_t pitch, line;
    const Step *step;  // of each token, or one for all
    bool one_step;
    const int32_t *sum;
    const float *scale, *bias;  // bias may be null; sixteen of each
    int64_t rows;               // that exist
    bool relu;
    float *out;
    int64_t out_token, out_line;
    const TokenEnd *end;  // null, or what becomes of the numbers, in place of `relu` and `out`
};

// Eight weights of a row of a convolution, and where their inputs lie (integer_planes.h).
struct Octet {
    uint32_t at[8];
    int8_t weight[16];  // each two stand twice: a b a b, c d c d, ...; or in fours: a b c d, e f g h
};

// Some rows of a convolution for some neighbouring pixels, over one block of channels: the sums, or where it is the last block
// act((sum - zero * row's sum) * (step * scale) + bias + other), as floats and, for what reads them next, as bytes.
struct PlaneTask {
    const Octet *octets;   // row by row
    const int32_t *quads;  // of each row
    int64_t rows;
    const uint8_t *x;
    int pixels;
    int32_t *sums;  // [rows][pixels of the level], from block to block
    bool fresh, last;
    Step step;
    const int32_t *sum;
    const float *scale, *bias;  // bias may be null
    bool relu;
    float cap;      // the most that a ReLU lets through
    int64_t plane;  // numbers from row to row of what follows; each may be null
    float *out;
    const float *other;
    uint8_t *bytes;
    const Grid *grid;  // of the bytes
    bool *wild;        // set where a byte was made from something that is not finite
};

// Some lines of tokens of a convolution whose rows each read one channel, their own: the sums as numbers, without what
// is added and done to them afterwards (integer_turned.h).
struct OwnTask {
    const uint8_t *x;
    int64_t line, pitch;  // bytes from line to line and from token to token
    const int64_t *at;    // [4 * fours]: where each tap lies
    int64_t fours, channels;
    const int8_t *weight;
    Step step;
    const int32_t *sum;  // these three by channel, in whole blocks of 64
    const float *scale, *bias;
    int64_t lines, tokens;
    float *out;  // [lines][tokens][block], for one block of channels after the other
    int64_t out_block;
    const TokenEnd *end;  // null, or what becomes of the numbers of the only block, in place of `out`
};
constexpr int64_t own_block = 64;

// The smallest and the largest of some numbers and zero, and whether one of them is not finite.
struct Range {
    float low = 0.0f, high = 0.0f;
    bool wild = false;
    Grid grid() const { return grid_for(low, high, wild, true); }
};

// The grid of a range that is known beforehand; what lies outside is moved to its ends.
inline Grid fixed_grid(float low, float high) {
    return low <= 0.0f && high >= 0.0f && std::isfinite(low) && std::isfinite(high) ? grid_for(low, high, false)
                                                                                    : grid_for(0.0f, 0.0f, true);
}

struct IntegerLevel {
    const char *name;
    void (*measure)(const float *x, int64_t count, Range &);
    // Bytes of `count` floats; whether all of them are finite.
    bool (*to_bytes)(const float *x, int64_t count, const Grid &, uint8_t *out);
    // from[i] where inside[i] is 255, and `zero` where it is 0; and the same of every second byte.
    void (*choose)(const uint8_t *from, const uint8_t *inside, int64_t count, uint8_t zero, uint8_t *out);
    void (*choose_second)(const uint8_t *from, const uint8_t *inside, int64_t count, uint8_t zero, uint8_t *out);
    void (*multiply)(const IntegerTask &);
    int together;  // tokens that `multiply` best has a multiple of
    void (*planes)(const PlaneTask &);
    int64_t pixels;  // that `planes` takes at once
    bool fours;      // it multiplies four weights by one instruction; otherwise two, whose sums must fit 16 bits
    bool turned;     // images with all channels of a pixel side by side are faster than planes
    bool ends;       // `multiply`, with one step for all, and `own` take an `end`
    // to[pixel * pitch + channel] = from[channel * plane + pixel].
    void (*turn)(const uint8_t *from, int64_t plane, int64_t channels, int64_t pixels, uint8_t *to, int64_t pitch);
    void (*own)(const OwnTask &);
    void (*end_tokens)(const TokenEnd &);
};

const IntegerLevel &portable_integers();
const IntegerLevel &avx2_integers();
const IntegerLevel &neon_integers();
const IntegerLevel &avx_vnni_integers();
const IntegerLevel &avx512_vnni_integers();

// Tokens as bytes, in memory of the calling thread: until it quantises again.
struct Quantised {
    const uint8_t *at;
    const Step *steps;
    int64_t pitch;  // bytes from token to token
};

// Each token over its own range, or all over that of `fixed`. A token that is not finite has the step NaN.
Quantised quantise_tokens(const IntegerLevel &, const float *x, int64_t cols, int64_t ldx, int64_t tokens, int threads,
                          const Grid *fixed = nullptr);

void multiply_tokens(const IntegerLevel &, const IntegerMatrix &, const Quantised &, int64_t tokens, float *y,
                     int64_t ldy, const float *bias, bool relu, int threads);

// y (tokens x rows) = act(x (tokens x cols) * W^T + bias).
void integer_linear(const IntegerLevel &, const IntegerMatrix &, const float *x, int64_t ldx, int64_t tokens, float *y,
                    const float *bias, bool relu, int threads, const Grid *fixed = nullptr);

}  // namespace kernels
}  // namespace prunus
