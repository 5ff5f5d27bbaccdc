// The tile kernel and the transposes, written once over a register type; each instruction set includes this file inside
// its own anonymous namespace after defining vec, W and the few operations on it. Nothing here may have external
// linkage: the linker would keep one instruction set's copy for all.
//
// Samples (or pixels) lie in the lanes. A kept weight costs one spread over the lanes and, for each register of samples,
// one multiply-add that reads its input straight from memory: no gather, any column order. The tile's inputs
// stay in the first-level cache; a few rows at a time keep their sums in registers.

typedef uint64_t __attribute__((may_alias, aligned(4))) offset_pair;

template <int R, int V>
inline void rows_kernel(const float *x, const uint32_t *offsets, const float *values, int64_t slots, float *acc) {
    constexpr int64_t ld = int64_t(V) * W;
    vec sum[R][V];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) sum[r][v] = load(acc + r * ld + v * W);
    for (int64_t s = 0; s < slots; ++s, offsets += lanes, values += lanes) {
        vec weight[R];
        splat_rows<R>(values, weight);
#pragma GCC unroll 8
        for (int r = 0; r < R; r += 2) {
            // Loads are what limits this loop: two offsets come in one.
            const uint64_t pair = *reinterpret_cast<const offset_pair *>(offsets + r);
            const float *column = x + uint32_t(pair), *next = x + (pair >> 32);
#pragma GCC unroll 8
            for (int v = 0; v < V; ++v) sum[r][v] = fma(weight[r], load(column + v * W), sum[r][v]);
#pragma GCC unroll 8
            for (int v = 0; v < V; ++v) sum[r + 1][v] = fma(weight[r + 1], load(next + v * W), sum[r + 1][v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) store(acc + r * ld + v * W, sum[r][v]);
}

template <int R, int V>
inline void group_kernel(const Tile &t, const uint32_t *offsets, const float *values) {
    constexpr int64_t ld = int64_t(V) * W;
    for (int64_t r = 0; r < t.rows; r += R)
        rows_kernel<R, V>(t.x, offsets + r, values + r, t.last - t.first, t.acc + r * ld);
}

void decode_offsets(const Packed &p, const Columns &c, int64_t group, int64_t first, int64_t last, uint32_t *out) {
    const int64_t per_packet = p.per_packet();
    const uint32_t mask = per_packet == 2 ? 15 : 255;
    const uint8_t *index = p.index + p.packet_start[group] * lanes;
    const int32_t *schedule = p.schedule + p.schedule_start[group];
    for (int64_t s = first; s < last; ++s, out += lanes) {
        const uint8_t *packet = index + s / per_packet * lanes;
        const int shift = int(s % per_packet) * 4;
        if (c.table) {
            const uint32_t *columns = c.table + int64_t(schedule[s]) * p.bank;
            for (int i = 0; i < lanes; ++i) out[i] = columns[(packet[i] >> shift) & mask];
        } else {
            place(packet, shift, mask, c.stride, c.base[schedule[s]], out);
        }
    }
}

inline const float *decode_values(const Packed &p, const Tile &t) {
    const int64_t first = (p.slot_start[t.group] + t.first) * lanes, count = (t.last - t.first) * lanes;
    if (p.kind == Values::f32) return static_cast<const float *>(p.values) + first;
    uint32_t *bits = reinterpret_cast<uint32_t *>(t.decoded);
    if (p.kind == Values::bf16) {
        const uint16_t *from = static_cast<const uint16_t *>(p.values) + first;
        for (int64_t i = 0; i < count; ++i) bits[i] = uint32_t(from[i]) << 16;
    } else {
        const int8_t *from = static_cast<const int8_t *>(p.values) + first;
        for (int64_t i = 0; i < count; ++i) t.decoded[i] = float(from[i]);
    }
    return t.decoded;
}

void tile_kernel(const Packed &p, const Tile &t) {
    if (t.last <= t.first) return;
    const float *values = decode_values(p, t);
    switch (t.vectors) {
        case 1: return group_kernel<8, 1>(t, t.offsets, values);
        case 2: return group_kernel<4, 2>(t, t.offsets, values);
        case 3: return group_kernel<4, 3>(t, t.offsets, values);
        case 4: return group_kernel<2, 4>(t, t.offsets, values);
        case 5: return group_kernel<2, 5>(t, t.offsets, values);
        default: return group_kernel<2, 6>(t, t.offsets, values);
    }
}

// out = act(acc * scale + bias + other), over one row of a tile; `other` may be null.
void finish_row(const float *acc, int64_t count, float scale, float bias, const float *other, bool relu, float *out) {
    if (other) {
        for (int64_t i = 0; i < count; ++i) out[i] = acc[i] * scale + bias + other[i];
    } else {
        for (int64_t i = 0; i < count; ++i) out[i] = acc[i] * scale + bias;
    }
    if (relu)
        for (int64_t i = 0; i < count; ++i) out[i] = out[i] < 0.0f ? 0.0f : out[i];  // keeps NaN, as torch does
}
