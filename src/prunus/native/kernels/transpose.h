// Between samples-by-columns in memory and columns-by-samples in a tile; included like tile.h, after transpose8.

void to_tile(const float *x, int64_t ldx, int64_t samples, int64_t cols, float *out) {
    constexpr int64_t ld = W;
    int64_t n = 0;
    for (; n + 8 <= samples; n += 8) {
        int64_t c = 0;
        for (; c + 8 <= cols; c += 8) transpose8(x + n * ldx + c, ldx, out + c * ld + n, ld);
        for (; c < cols; ++c)
            for (int64_t i = n; i < n + 8; ++i) out[c * ld + i] = x[i * ldx + c];
    }
    if (n == ld) return;
    const int64_t left = samples - n, filled = left > 0 && n + 8 <= ld ? n + 8 : samples;
    int64_t c = 0;
    if (filled > samples) {  // less than a block of samples: filled up with zeros
        constexpr int64_t run = 64;
        float rows[8 * run] = {};
        for (int64_t count; (count = (cols - c < run ? cols - c : run) / 8 * 8) > 0; c += count) {
            for (int64_t i = 0; i < left; ++i) copy_floats(x + (n + i) * ldx + c, count, rows + i * run);
            for (int64_t j = 0; j < count; j += 8) transpose8(rows + j, run, out + (c + j) * ld + n, ld);
        }
    }
    for (int64_t k = 0; k < cols; ++k) {
        for (int64_t i = n; k >= c && i < filled; ++i) out[k * ld + i] = i < samples ? x[i * ldx + k] : 0.0f;
        for (int64_t i = filled; i < ld; ++i) out[k * ld + i] = 0.0f;
    }
}

// Rows of y are often a power of two apart, so that those of many samples fall into the same few places of the cache:
// few samples at a time, and of each a whole line at once.
void from_tile(const float *acc, int64_t ld, int64_t rows, int64_t samples, float *y, int64_t ldy) {
    constexpr int64_t run = 128;
    const int64_t whole = rows / 16 * 16, fours = samples / 4 * 4;
    for (int64_t first = 0; first < whole; first += run) {
        const int64_t last = whole - first < run ? whole : first + run;
        for (int64_t n = 0; n < fours; n += 4)
            for (int64_t r = first; r < last; r += 16) transpose4(acc + r * ld + n, ld, y + n * ldy + r, ldy);
        for (int64_t n = fours; n < samples; ++n)
            for (int64_t r = first; r < last; ++r) y[n * ldy + r] = acc[r * ld + n];
    }
    for (int64_t r = whole; r < rows; ++r)
        for (int64_t n = 0; n < samples; ++n) y[n * ldy + r] = acc[r * ld + n];
}
