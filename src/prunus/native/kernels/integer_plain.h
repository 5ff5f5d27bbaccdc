// Integer products outside of the sums, in plain C++: for instruction sets that bring nothing better. Included once for
// each; `add_up(task, x, sums)` is the caller's: the sums of one token's sixteen rows.

void measure(const float *x, int64_t count, Range &range) {
    for (int64_t i = 0; i < count; ++i) {
        range.wild |= !std::isfinite(x[i]);
        range.low = x[i] < range.low ? x[i] : range.low, range.high = x[i] > range.high ? x[i] : range.high;
    }
}

// What lies outside of the range is moved to its ends.
uint8_t to_byte(float x, const Grid &grid) {
    const float low = float(-grid.step.zero), high = float(top - grid.step.zero), scaled = x * grid.inverse;
    const float inside = scaled > low ? (scaled < high ? scaled : high) : low;
    return grid.flat ? uint8_t(0) : uint8_t(int(std::nearbyint(inside)) + grid.step.zero);
}

bool to_bytes(const float *x, int64_t count, const Grid &grid, uint8_t *out) {
    bool finite = true;
    for (int64_t i = 0; i < count; ++i) finite &= std::isfinite(x[i]), out[i] = to_byte(x[i], grid);
    return finite;
}

void choose(const uint8_t *from, const uint8_t *inside, int64_t count, uint8_t zero, uint8_t *out) {
    for (int64_t i = 0; i < count; ++i) out[i] = uint8_t((from[i] & inside[i]) | (zero & ~inside[i]));
}

void choose_second(const uint8_t *from, const uint8_t *inside, int64_t count, uint8_t zero, uint8_t *out) {
    for (int64_t i = 0; i < count; ++i) out[i] = inside[i] ? from[2 * i] : zero;
}

template <typename AddUp>
inline void multiply_tokens_with(const IntegerTask &t, AddUp add_up) {
    if (t.twin) multiply_tokens_with(*t.twin, add_up);
    for (int64_t i = 0; i < t.lines; ++i)
        for (int n = 0; n < t.tokens; ++n) {
            int32_t sum[lanes] = {};
            add_up(t, t.x + i * t.line + n * t.pitch, sum);
            const Step &step = t.step[t.one_step ? 0 : n];
            float *out = t.out + i * t.out_line + n * t.out_token;
            for (int64_t row = 0; row < t.rows; ++row) {
                float value = float(sum[row] - step.zero * t.sum[row]) * (step.step * t.scale[row]);
                value += t.bias ? t.bias[row] : 0.0f;
                out[row] = t.relu && value < 0.0f ? 0.0f : value;
            }
        }
}

// One row's sums of 32 pixels become numbers, and these bytes.
inline void end_row(const PlaneTask &t, int64_t row, const int32_t *sums) {
    const float scale = t.step.step * t.scale[row], bias = t.bias ? t.bias[row] : 0.0f;
    for (int i = 0; i < t.pixels; ++i) {
        float value = float(sums[i]) * scale + bias;
        if (t.other) value += t.other[row * t.plane + i];
        value = !t.relu ? value : value < 0.0f ? 0.0f : value > t.cap ? t.cap : value;
        if (t.out) t.out[row * t.plane + i] = value;
        if (t.bytes) t.bytes[row * t.plane + i] = to_byte(value, *t.grid);
        if (t.bytes && !std::isfinite(value)) *t.wild = true;
    }
}

void planes(const PlaneTask &t) {
    const Octet *octet = t.octets;
    for (int64_t row = 0; row < t.rows; ++row) {
        int32_t *sums = t.sums + row * pixels_at_once;
        if (t.fresh) std::fill(sums, sums + pixels_at_once, -t.step.zero * t.sum[row]);
        for (int32_t quads = t.quads[row]; quads > 0; quads -= 2, ++octet)
            for (int i = 0; i < (quads > 1 ? 8 : 4); ++i) {
                const int weight = octet->weight[i / 2 * 4 + i % 2];
                const uint8_t *x = t.x + octet->at[i];
                for (int64_t p = 0; p < pixels_at_once; ++p) sums[p] += weight * int(x[p]);
            }
        if (t.last) end_row(t, row, sums);
    }
}

void turn(const uint8_t *from, int64_t plane, int64_t channels, int64_t pixels, uint8_t *to, int64_t pitch) {
    for (int64_t i = 0; i < pixels; ++i)
        for (int64_t k = 0; k < channels; ++k) to[i * pitch + k] = from[k * plane + i];
}

void own(const OwnTask &t) {
    for (int64_t k = 0; k < t.channels; ++k) {
        const int64_t block = k / own_block, channel = k % own_block;
        const int64_t place = channel % 16 / 4 * 16 + channel / 16 * 4 + channel % 4;
        const int8_t *weight = t.weight + (block * t.fours * own_block + place) * 4;
        const float scale = t.step.step * t.scale[k];
        for (int64_t i = 0; i < t.lines; ++i)
            for (int64_t n = 0; n < t.tokens; ++n) {
                const uint8_t *x = t.x + i * t.line + n * t.pitch + k;
                int32_t sum = -t.step.zero * t.sum[k];
                for (int64_t tap = 0; tap < 4 * t.fours; ++tap)
                    sum += weight[tap / 4 * own_block * 4 + tap % 4] * int(x[t.at[tap]]);
                float *out = t.out + block * t.out_block + (i * t.tokens + n) * own_block + channel;
                *out = float(sum) * scale + (t.bias ? t.bias[k] : 0.0f);
            }
    }
}

void end_tokens(const TokenEnd &t) {
    for (int64_t i = 0; i < t.lines; ++i)
        for (int64_t n = 0; n < t.tokens; ++n) {
            const float *from = t.from + (i * t.tokens + n) * t.from_token;
            const int64_t at = i * t.out_line + n * t.out_token;
            for (int64_t r = 0; r < t.rows; ++r) {
                float value = from[r];
                if (t.other) value += t.other[at + r];
                value = !t.relu ? value : value < 0.0f ? 0.0f : value > t.cap ? t.cap : value;
                if (t.out) t.out[at + r] = value;
                if (!t.bytes) continue;
                t.bytes[i * t.byte_line + n * t.byte_token + r] = to_byte(value, *t.grid);
                if (!std::isfinite(value)) *t.wild = true;
            }
        }
}
