// The convolution for one instruction set. The file that includes this defines, in an anonymous namespace: Lanes,
// lane_count, filter_block, load, store, spread (one value in all lanes) and multiply_add(sum, a, b).
//
// The image is first copied with its zero padding, columns sorted by their remainder modulo the stride, so that the
// inputs of neighbouring outputs lie side by side. Then `filter_block` filters times up to three vectors of outputs are
// summed in registers.

static std::int64_t padded_height(const Shape &s) {
    return (s.out_y - 1) * s.stride_y + (s.kernel_y - 1) * s.dilation_y + 1;
}

static std::int64_t padded_width(const Shape &s) {
    const std::int64_t vectors = (s.out_x + lane_count - 1) / lane_count;
    return vectors * lane_count + ((s.kernel_x - 1) * s.dilation_x) / s.stride_x + 1;
}

static std::int64_t space(const Shape &s) { return s.channels * padded_height(s) * s.stride_x * padded_width(s); }

static void copy_padded(const double *x, const Shape &s, double *to) {
    const std::int64_t rows = padded_height(s), columns = padded_width(s);
    for (std::int64_t c = 0; c < s.channels; ++c) {
        for (std::int64_t r = 0; r < rows; ++r) {
            const std::int64_t from_row = r - s.pad_y;
            const bool inside = from_row >= 0 && from_row < s.height;
            const double *line = x + (c * s.height + from_row) * s.width;
            for (std::int64_t phase = 0; phase < s.stride_x; ++phase) {
                double *out = to + ((c * rows + r) * s.stride_x + phase) * columns;
                for (std::int64_t j = 0; j < columns; ++j) {
                    const std::int64_t from = j * s.stride_x + phase - s.pad_x;
                    out[j] = inside && from >= 0 && from < s.width ? line[from] : 0.0;
                }
            }
        }
    }
}

template <int vectors>
static void tile(const double *from, const double *weights, double *y, const Shape &s, std::int64_t filters,
                 std::int64_t columns_left) {
    const std::int64_t rows = padded_height(s), columns = padded_width(s);
    Lanes sums[filter_block][vectors];
    for (int f = 0; f < filter_block; ++f)
        for (int v = 0; v < vectors; ++v) sums[f][v] = spread(0.0);
    for (std::int64_t c = 0; c < s.channels; ++c) {
        for (std::int64_t ky = 0; ky < s.kernel_y; ++ky) {
            const double *line = from + (c * rows + ky * s.dilation_y) * s.stride_x * columns;
            for (std::int64_t kx = 0; kx < s.kernel_x; ++kx) {
                const std::int64_t offset = kx * s.dilation_x;
                const double *at = line + (offset % s.stride_x) * columns + offset / s.stride_x;
                Lanes inputs[vectors];
                for (int v = 0; v < vectors; ++v) inputs[v] = load(at + v * lane_count);
                for (int f = 0; f < filter_block; ++f) {
                    const Lanes weight = spread(weights[f]);
                    for (int v = 0; v < vectors; ++v) sums[f][v] = multiply_add(sums[f][v], weight, inputs[v]);
                }
                weights += filter_block;
            }
        }
    }
    for (std::int64_t f = 0; f < filters; ++f) {
        double *out = y + f * s.out_y * s.out_x;
        for (int v = 0; v < vectors; ++v) {
            const std::int64_t left = columns_left - v * lane_count;
            if (left >= lane_count) {
                store(out + v * lane_count, sums[f][v]);
            } else {
                double last[lane_count];
                store(last, sums[f][v]);
                for (std::int64_t j = 0; j < left; ++j) out[v * lane_count + j] = last[j];
            }
        }
    }
}

static void run(const double *x, const double *packed, double *y, const Shape &s, double *work) {
    copy_padded(x, s, work);
    const std::int64_t columns = padded_width(s), row = s.stride_x * columns;
    const std::int64_t taps = s.channels * s.kernel_y * s.kernel_x;
    for (std::int64_t first = 0; first < s.filters; first += filter_block) {
        const std::int64_t filters = s.filters - first < filter_block ? s.filters - first : filter_block;
        const double *weights = packed + first * taps;
        for (std::int64_t i = 0; i < s.out_y; ++i) {
            const double *from = work + i * s.stride_y * row;
            double *out = y + (first * s.out_y + i) * s.out_x;
            for (std::int64_t j = 0; j < s.out_x;) {
                // Four vectors go as two pairs: a single one would wait for its own sums.
                const std::int64_t left = s.out_x - j, vectors = (left + lane_count - 1) / lane_count;
                if (vectors == 1) {
                    tile<1>(from + j, weights, out + j, s, filters, left);
                    j += lane_count;
                } else if (vectors == 2 || vectors == 4) {
                    tile<2>(from + j, weights, out + j, s, filters, left);
                    j += 2 * lane_count;
                } else {
                    tile<3>(from + j, weights, out + j, s, filters, left);
                    j += 3 * lane_count;
                }
            }
        }
    }
}
