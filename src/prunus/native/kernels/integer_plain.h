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

bool planes_to_bytes(const float *x, int64_t plane, int64_t channels, int64_t count, const Grid &grid, uint8_t *out,
                     int64_t pitch) {
    bool finite = true;
    for (int64_t i = 0; i < count; ++i, out += pitch) {
        for (int64_t c = 0; c < channels; ++c)
            finite &= std::isfinite(x[c * plane + i]), out[c] = to_byte(x[c * plane + i], grid);
        std::fill(out + channels, out + std::max(channels, pitch), uint8_t(0));
    }
    return finite;
}

// The sums of a token become numbers, and these bytes.
inline void finish_token(const IntegerTask &t, const int32_t (&sum)[lanes], const Step &step, float *out,
                         const float *other, uint8_t *bytes) {
    for (int64_t row = 0; row < t.rows; ++row) {
        float value = float(sum[row] - step.zero * t.sum[row]) * (step.step * t.scale[row]);
        value += t.bias ? t.bias[row] : 0.0f;
        if (other) value += other[row];
        value = t.relu && value < 0.0f ? 0.0f : value;
        if (out) out[row] = value;
        if (bytes) bytes[row] = to_byte(value, *t.grid);
        if (bytes && !std::isfinite(value)) *t.wild = true;
    }
    for (int64_t row = t.rows; bytes && row < lanes; ++row) bytes[row] = 0;
}

template <typename AddUp>
inline void multiply_tokens_with(const IntegerTask &t, AddUp add_up) {
    if (t.twin) multiply_tokens_with(*t.twin, add_up);
    for (int64_t i = 0; i < t.lines; ++i)
        for (int n = 0; n < t.tokens; ++n) {
            int32_t sum[lanes] = {};
            add_up(t, t.x + i * t.line + n * t.pitch, sum);
            finish_token(t, sum, t.step[t.one_step ? 0 : n], t.out ? t.out + i * t.out_line + n * t.out_token : nullptr,
                         t.other ? t.other + i * t.other_line + n * t.other_token : nullptr,
                         t.bytes ? t.bytes + i * t.bytes_line + n * t.bytes_token : nullptr);
        }
}
