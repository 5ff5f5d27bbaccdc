// The table of one instruction set; included last, after tile.h, transpose.h and the unit's own `permute_samples`.

void permute_kernel(const Packed &p, const Ready *ready, int64_t group, const float *x, int64_t ldx,
                    const uint8_t *tables, int64_t table_stride, int samples, float *out) {
    switch (p.kind) {
        case Values::f32: return permute_samples<float>(p, ready, group, x, ldx, tables, table_stride, samples, out);
        case Values::bf16:
            return permute_samples<uint16_t>(p, ready, group, x, ldx, tables, table_stride, samples, out);
        case Values::i8: return permute_samples<int8_t>(p, ready, group, x, ldx, tables, table_stride, samples, out);
    }
}

// What the permute kernel can do, the tables it reads in place of x, if any, and whether it reads `Ready`.
struct Permute {
    int up_to, bank;
    int table_bytes = 0;
    void (*prepare)(const int32_t *schedule, int64_t slots, int64_t bank, const float *x, uint8_t *tables) = nullptr;
    bool ready = false;
};

constexpr Level level_of(const char *name, const Permute &permute) {
    return {
        .name = name,
        .width = W,
        .max_vectors = max_vectors,
        .permute_up_to = permute.up_to,
        .permute_bank = permute.bank,
        .tile = tile_kernel,
        .decode = decode_offsets<uint16_t>,
        .decode_wide = decode_offsets<uint32_t>,
        .values = decode_values,
        .table_bytes = permute.table_bytes,
        .prepare = permute.prepare,
        .ready = permute.ready,
        .permute = permute_kernel,
        .to_tile = to_tile,
        .from_tile = from_tile,
        .finish = finish_tile,
        .copy = copy_floats,
        .copy_second = copy_every_second,
        .window = copy_window,
        .depthwise = depthwise_channel,
        .read = read_floats,
        .multiply = multiply_adds,
    };
}
