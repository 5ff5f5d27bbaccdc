// The tile kernel and the transposes, written once over a register type; each instruction set includes this file inside
// its own anonymous namespace after defining vec, W and the few operations on it. Nothing here may have external
// linkage: the linker would keep one instruction set's copy for all.
//
// Samples (or pixels) lie in the lanes. A kept weight costs one spread over the lanes and, for each register of samples,
// one multiply-add that reads its input straight from memory: no gather, any column order. The tile's inputs
// stay in the first-level cache; a few rows at a time keep their sums in registers.

typedef uint64_t __attribute__((may_alias, aligned(2))) eight_bytes;

// Where the inputs of R rows lie. Loads are what limits the loop below: as many offsets come in one as fit.
template <int R, typename Offset>
inline void offsets_of(const Offset *p, uint64_t (&out)[R]) {
    constexpr int size = int(sizeof(Offset)), each = 8 / size;
#pragma GCC unroll 8
    for (int r = 0; r < R; r += each) {
        const uint64_t pack = *reinterpret_cast<const eight_bytes *>(p + r);
#pragma GCC unroll 4
        for (int i = 0; i < each; ++i) out[r + i] = Offset(pack >> (i * 8 * size));
    }
}

// The offsets of a slot lie `pitch` bytes after those of the one before, and so do its values.
template <int pitch, typename T>
inline const T *next_slot(const T *p) {
    return reinterpret_cast<const T *>(reinterpret_cast<const uint8_t *>(p) + pitch);
}

template <int R, int V, bool beside, typename Offset>
__attribute__((always_inline)) inline void rows_kernel(const Tile &t, const Offset *offsets, int64_t row) {
    constexpr int64_t ld = int64_t(V) * W;
    constexpr int near = int(beside_bytes), apart = int(lanes);
    offsets += row;
    const float *values = t.values + row;
    float *acc = t.acc + row * ld;
    const float *x[V];
    vec sum[R][V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) x[v] = t.x[v];
    if (t.fresh) {
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const vec first = all(t.start && row + r < t.rows ? t.start[t.first_row + row + r] : 0.0f);
#pragma GCC unroll 8
            for (int v = 0; v < V; ++v) sum[r][v] = first;
        }
    } else {
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
            for (int v = 0; v < V; ++v) sum[r][v] = load(acc + r * ld + v * W);
    }
    for (int64_t s = t.slots; s > 0; --s) {
        vec weight[R];
        uint64_t at[R];
        splat_rows<R>(values, weight);
        offsets_of<R>(offsets, at);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
            for (int v = 0; v < V; ++v) sum[r][v] = fma(weight[r], load(x[v] + at[r]), sum[r][v]);
        offsets = next_slot<beside ? near : apart * int(sizeof(Offset))>(offsets);
        values = next_slot<beside ? near : apart * int(sizeof(float))>(values);
    }
    if (t.end) {
        const Direct &e = *t.end;
        const Finish &f = e.finish;
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            if (row + r >= t.rows) break;
            const int64_t n = t.first_row + row + r;
            if (f.scale) {
                const vec scale = all(f.scale[n]), bias = all(f.bias ? f.bias[n] : 0.0f);
#pragma GCC unroll 8
                for (int v = 0; v < V; ++v) sum[r][v] = fma(sum[r][v], scale, bias);
            }
            if (e.other[0]) {
#pragma GCC unroll 8
                for (int v = 0; v < V; ++v) sum[r][v] = add(sum[r][v], load(e.other[v] + n * e.other_plane));
            }
            if (f.relu) {
#pragma GCC unroll 8
                for (int v = 0; v < V; ++v) sum[r][v] = at_most(all(f.cap), positive(sum[r][v]));
            }
#pragma GCC unroll 8
            for (int v = 0; v < V; ++v) store(e.out[v] + n * e.plane, sum[r][v]);
        }
        return;
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) store(acc + r * ld + v * W, sum[r][v]);
}

template <int R, int V>
void group_kernel(const Tile &t) {
    if (t.beside)
        for (int64_t r = 0; r < t.rows; r += R) rows_kernel<R, V, true>(t, t.narrow, r);
    else if (t.narrow)
        for (int64_t r = 0; r < t.rows; r += R) rows_kernel<R, V, false>(t, t.narrow, r);
    else
        for (int64_t r = 0; r < t.rows; r += R) rows_kernel<R, V, false>(t, t.wide, r);
}

template <typename Offset>
void decode_offsets(const Packed &p, const Columns &c, int64_t group, int64_t first, int64_t last, Offset *out) {
    const int64_t per_packet = p.per_packet();
    const uint32_t mask = per_packet == 2 ? 15 : 255;
    const uint8_t *index = p.index + p.packet_start[group] * lanes;
    const int32_t *schedule = p.schedule + p.schedule_start[group];
    if (c.table) {
        for (int64_t s = first; s < last; ++s, out += lanes) {
            const uint32_t *columns = c.table + int64_t(schedule[s]) * p.bank;
            const uint8_t *packet = index + s / per_packet * lanes;
            const int shift = int(s % per_packet) * 4;
            for (int i = 0; i < lanes; ++i) out[i] = Offset(columns[(packet[i] >> shift) & mask]);
        }
        return;
    }
    const Placer<Offset> placer{c.stride};
    if (per_packet == 1) {
        for (int64_t s = first; s < last; ++s, out += lanes) placer.whole(index + s * lanes, c.base[schedule[s]], out);
        return;
    }
    int64_t s = first;
    if (s < last && s % 2) placer.high(index + s / 2 * lanes, c.base[schedule[s]], out), ++s, out += lanes;
    for (; s + 2 <= last; s += 2, out += 2 * lanes) {
        placer.low(index + s / 2 * lanes, c.base[schedule[s]], out);
        placer.high(index + s / 2 * lanes, c.base[schedule[s + 1]], out + lanes);
    }
    if (s < last) placer.low(index + s / 2 * lanes, c.base[schedule[s]], out);
}

const float *decode_values(const Packed &p, int64_t group, int64_t first, int64_t last, float *out) {
    const int64_t from = (p.slot_start[group] + first) * lanes, count = (last - first) * lanes;
    if (p.kind == Values::f32) return static_cast<const float *>(p.values) + from;
    if (p.kind == Values::bf16) {
        uint32_t *bits = reinterpret_cast<uint32_t *>(out);
        const uint16_t *half = static_cast<const uint16_t *>(p.values) + from;
        for (int64_t i = 0; i < count; ++i) bits[i] = uint32_t(half[i]) << 16;
    } else {
        const int8_t *byte = static_cast<const int8_t *>(p.values) + from;
        for (int64_t i = 0; i < count; ++i) out[i] = float(byte[i]);
    }
    return out;
}

void tile_kernel(const Tile &t) {
    switch (t.vectors) {
        case 1: return group_kernel<8, 1>(t);
        case 2: return group_kernel<4, 2>(t);
        // Twelve sums: enough that no multiply-add waits for the one before it, and four rows share what is loaded once.
        case 3: return group_kernel<4, 3>(t);
        default:
            if constexpr (max_vectors == 4) return group_kernel<4, 4>(t);
    }
}

void finish_tile(const Ending &e) {
    const Finish &f = e.finish;
    for (int64_t r = 0; r < e.rows; ++r) {
        const float scale = f.scale ? f.scale[r] : 1.0f, bias = f.bias ? f.bias[r] : 0.0f;
        const vec scales = all(scale), biases = all(bias);
        for (const Run *run = e.runs; run < e.runs + e.count; ++run) {
            const float *acc = e.acc + r * e.ld + run->from;
            float *out = e.out + r * e.plane + run->to;
            const float *other = f.other ? f.other + r * e.other_plane + run->also : nullptr;
            const auto at = [&](int64_t i) {
                vec v = fma(load(acc + i), scales, biases);
                if (other) v = add(v, load(other + i));
                store(out + i, f.relu ? at_most(all(f.cap), positive(v)) : v);
            };
            if (run->count >= W) {
                for (int64_t i = 0; i + W <= run->count; i += W) at(i);
                if (run->count % W && e.out != e.acc) at(run->count - W);  // the last ones again, not one by one
                if (e.out != e.acc) continue;
            }
            for (int64_t i = run->count / W * W; i < run->count; ++i) {
                float one[W];
                store(one, fma(all(acc[i]), scales, biases));  // rounded as the whole registers are
                float v = one[0];
                if (other) v += other[i];
                out[i] = !f.relu ? v : v < 0.0f ? 0.0f : v > f.cap ? f.cap : v;  // keeps NaN, as torch does
            }
        }
    }
}

// R rows of V registers of pixels of one channel, of which the last may be partly beyond the image.
template <int R, int V>
inline void depthwise_block(const Depthwise &d, int64_t y, int64_t x) {
    const Finish &f = d.finish;
    const float *in = d.in + y * d.step + x;
    const vec bias = all(f.bias ? *f.bias : 0.0f), scale = all(f.scale ? *f.scale : 1.0f), cap = all(f.cap);
    vec sum[R][V];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) sum[r][v] = f.scale ? all(0.0f) : bias;
    for (int64_t t = 0; t < d.taps; ++t) {
        const vec weight = all(d.weight[t]);
        const float *from = in + d.at[t];
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
            for (int v = 0; v < V; ++v) sum[r][v] = fma(weight, load(from + r * d.step + v * W), sum[r][v]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) {
            const int64_t left = d.width - x - v * W;
            float *out = d.out + (y + r) * d.pitch + x + v * W, some[W] = {};
            vec value = f.scale ? fma(sum[r][v], scale, bias) : sum[r][v];
            if (f.other) {
                const float *other = f.other + (y + r) * d.other_pitch + x + v * W;
                for (int64_t i = 0; left < W && i < left; ++i) some[i] = other[i];
                value = add(value, load(left < W ? some : other));
            }
            if (f.relu) value = at_most(cap, positive(value));
            store(left < W ? some : out, value);
            for (int64_t i = 0; left < W && i < left; ++i) out[i] = some[i];
        }
}

template <int R>
inline void depthwise_rows(const Depthwise &d, int64_t y) {
    int64_t x = 0;
    for (; x + W < d.width; x += 2 * W) depthwise_block<R, 2>(d, y, x);
    if (x < d.width) depthwise_block<R, 1>(d, y, x);
}

void depthwise_channel(const Depthwise &d) {
    int64_t y = 0;
    for (; y + 4 <= d.height; y += 4) depthwise_rows<4>(d, y);
    if (y + 2 <= d.height) depthwise_rows<2>(d, y), y += 2;
    if (y < d.height) depthwise_rows<1>(d, y);
}

void copy_floats(const float *from, int64_t count, float *to) {
    if (count < W) {
        for (int64_t i = 0; i < count; ++i) to[i] = from[i];
        return;
    }
    for (int64_t i = 0; i + W <= count; i += W) store(to + i, load(from + i));
    if (count % W) store(to + count - W, load(from + count - W));
}

void copy_every_second(const float *from, int64_t count, float *to) {
    int64_t i = 0;
    for (; i + W < count; i += W) store(to + i, every_second(load(from + 2 * i), load(from + 2 * i + W)));
    for (; i < count; ++i) to[i] = from[2 * i];
}

// The lanes of a register, and of the one beside it, that lie in the image.
struct Inside {
    some here, beside;
};

// S shifts; zero: as many as the window says. `whole`: no register reaches beyond the image's columns. `second`: of two
// registers side by side every second pixel is taken.
template <int S, bool whole, bool second>
inline void copy_window(const Window &w, const Inside *inside, int64_t pitch, int64_t room, float *out) {
    const int shifts = S ? S : int(w.shifts);
    const int64_t below = room * W, ahead = 4 * w.plane,
                  next = max_vectors * w.pitch;  // what is read soon, and by the next tile
    const float *from = w.from;
    for (int64_t c = 0; c < w.channels; ++c, from += w.plane, out += pitch) {
        float *to = out;
        int64_t r = 0;
        for (; r < w.first_row; ++r, to += W)
            for (int s = 0; s < shifts; ++s) store(to + s * below, all(0.0f));
        const float *at = from + r * w.pitch;
        for (; r < w.last_row; ++r, to += W, at += w.pitch) {
            __builtin_prefetch(at + ahead);
            __builtin_prefetch(at + next);
#pragma GCC unroll 3
            for (int s = 0; s < shifts; ++s) {
                const float *here = at + s * w.step;
                vec v = whole ? load(here) : load_some(here, inside[s].here);
                if (second) v = every_second(v, whole ? load(here + W) : load_some(here + W, inside[s].beside));
                store(to + s * below, v);
            }
        }
        for (; r < w.rows; ++r, to += W)
            for (int s = 0; s < shifts; ++s) store(to + s * below, all(0.0f));
    }
}

template <int S, bool second>
inline void copy_window(const Window &w, int64_t pitch, int64_t room, float *out) {
    Inside inside[max_shifts];
    for (int64_t s = 0; s < w.shifts; ++s) {
        const int64_t first = w.first_column - s * w.step, last = w.last_column - s * w.step;
        inside[s] = {lanes_between(first, last), lanes_between(first - W, last - W)};
    }
    if (w.first_column <= 0 && w.last_column >= (w.shifts - 1) * w.step + (second ? 2 * W : W))
        copy_window<S, true, second>(w, inside, pitch, room, out);
    else
        copy_window<S, false, second>(w, inside, pitch, room, out);
}

void copy_window(const Window &w, int64_t pitch, int64_t room, float *out) {
    if (w.second)
        return w.shifts == 3 ? copy_window<3, true>(w, pitch, room, out) : copy_window<0, true>(w, pitch, room, out);
    return w.shifts == 3 ? copy_window<3, false>(w, pitch, room, out) : copy_window<0, false>(w, pitch, room, out);
}

float read_floats(const float *from, int64_t count) {
    vec sum[8];
    for (int i = 0; i < 8; ++i) sum[i] = all(0.0f);
    for (int64_t i = 0; i + 8 * W <= count; i += 8 * W)
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j) sum[j] = add(sum[j], load(from + i + j * W));
    for (int i = 1; i < 8; ++i) sum[0] = add(sum[0], sum[i]);
    float out[W], total = 0.0f;
    store(out, sum[0]);
    for (int i = 0; i < W; ++i) total += out[i];
    return total;
}

float multiply_adds(int64_t count) {
    vec sum[12];
    const vec a = all(0.999f), b = all(1e-3f);
    for (int i = 0; i < 12; ++i) sum[i] = all(float(i));
    for (int64_t n = 0; n < count; ++n)
#pragma GCC unroll 12
        for (int i = 0; i < 12; ++i) sum[i] = fma(sum[i], a, b);
    for (int i = 1; i < 12; ++i) sum[0] = add(sum[0], sum[i]);
    float out[W];
    store(out, sum[0]);
    return out[0];
}
