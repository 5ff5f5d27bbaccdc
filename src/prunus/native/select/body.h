// The selection kernels, written once over sixteen keys at a time. Each instruction set includes this file inside its own
// unnamed namespace, after defining `Keys` and the few operations on it; so no code can leak from one set to another.
//
// Expected from the including file: Keys; load(const int32_t*), load(const int16_t*), store(int32_t*, Keys), splat(int32_t);
// negate_where(Keys magnitude, Keys bits), both(Keys, Keys), larger(Keys, Keys), largest_of(Keys);
// above(Keys, Keys) and same(Keys, Keys) -> 16 bits; append(int32_t*, Keys, unsigned bits) -> new end;
// spread(uint8_t*, unsigned bits); transpose(const int32_t[256], int32_t[256]); exchange(int32_t *low, int32_t *high).

using prunus::selection::Tally;
using std::int16_t;
using std::int32_t;
using std::int64_t;
using std::size_t;
using std::uint8_t;

template <typename Bits>
inline int32_t magnitude_mask() {
    return sizeof(Bits) == 4 ? 0x7fffffff : 0x7fff;
}

template <typename Bits, bool absolute>
inline int32_t key_of(Bits bits) {
    const int32_t wide = bits, magnitude = wide & magnitude_mask<Bits>();
    return absolute || wide >= 0 ? magnitude : -magnitude;
}

inline int ones(unsigned bits) { return __builtin_popcount(bits); }

// Sixteen keys from memory; `seen` collects magnitudes for the NaN check.
template <typename Bits, bool absolute>
inline Keys keys_at(const Bits *data, Keys &seen) {
    const Keys bits = load(data), magnitude = both(bits, splat(magnitude_mask<Bits>()));
    seen = larger(seen, magnitude);
    return absolute ? magnitude : negate_where(magnitude, bits);
}

inline void note(Tally *tally, Keys seen) {
    const int32_t top = largest_of(seen);
    if (top > tally->largest) tally->largest = top;
}

template <typename Bits>
inline void note_one(Tally *tally, Bits bits) {
    const int32_t magnitude = int32_t(bits) & magnitude_mask<Bits>();
    if (magnitude > tally->largest) tally->largest = magnitude;
}

template <typename Bits, bool absolute>
int32_t *scan_keys(const Bits *data, size_t n, int32_t low, int32_t high, int32_t *found, Tally *tally) {
    const Keys bottom = splat(low), top = splat(high);
    Keys seen = splat(0);
    int64_t under = 0;
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const Keys keys = keys_at<Bits, absolute>(data + i, seen);
        const unsigned less = above(bottom, keys), inside = 0xffffu & ~(less | above(keys, top));
        under += ones(less);
        if (inside) found = append(found, keys, inside);
    }
    for (; i < n; ++i) {
        const int32_t key = key_of<Bits, absolute>(data[i]);
        note_one(tally, data[i]);
        under += key < low;
        if (key >= low && key <= high) *found++ = key;
    }
    tally->under += under;
    note(tally, seen);
    return found;
}

template <typename Bits, bool absolute>
void count_keys(const Bits *data, size_t n, int32_t threshold, Tally *tally) {
    const Keys limit = splat(threshold);
    Keys seen = splat(0);
    int64_t under = 0, equal = 0;
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const Keys keys = keys_at<Bits, absolute>(data + i, seen);
        under += ones(above(limit, keys));
        equal += ones(same(limit, keys));
    }
    for (; i < n; ++i) {
        const int32_t key = key_of<Bits, absolute>(data[i]);
        note_one(tally, data[i]);
        under += key < threshold;
        equal += key == threshold;
    }
    tally->under += under;
    tally->equal += equal;
    note(tally, seen);
}

template <typename Bits, bool absolute>
void mark_keys(const Bits *data, size_t n, int32_t threshold, uint8_t *out, Tally *tally) {
    const Keys limit = splat(threshold);
    Keys seen = splat(0);
    int64_t equal = 0;
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const Keys keys = keys_at<Bits, absolute>(data + i, seen);
        spread(out + i, above(keys, limit));
        equal += ones(same(limit, keys));
    }
    for (; i < n; ++i) {
        const int32_t key = key_of<Bits, absolute>(data[i]);
        out[i] = key > threshold;
        equal += key == threshold;
    }
    tally->equal += equal;
}

// Bits to drop in a bank: all below the limit, and the first of those equal to it until `count` go.
inline unsigned with_ties(unsigned less, unsigned equal, int count) {
    unsigned drop = less | equal;
    for (int excess = ones(drop) - count; excess > 0; --excess) {
        const unsigned last = 31u - unsigned(__builtin_clz(equal));
        equal &= ~(1u << last);
        drop &= ~(1u << last);
    }
    return drop;
}

// Batcher's merge exchange on `size` rows of sixteen lanes each: every lane is sorted downwards through the rows.
inline void sort_rows(int32_t *rows, int size) {
    int half = 1;
    while (2 * half < size) half *= 2;
    for (int p = half; p > 0; p /= 2) {
        int q = half, offset = 0, gap = p;
        for (;;) {
            for (int i = 0; i + gap < size; ++i)
                if ((i & p) == offset) exchange(rows + 16 * i, rows + 16 * (i + gap));
            if (q == p) break;
            gap = q - p;
            q /= 2;
            offset = p;
        }
    }
}

// 256 scores: sixteen runs of sixteen, each holding 16 / bank banks. A lane of the transposed tile is one run, so the
// banks of all runs are sorted side by side; the limit of a bank is the last value that goes.
template <typename Bits, bool absolute, int bank>
void tile_banks(const Bits *data, const int32_t *drops, uint8_t *out, Keys &seen) {
    constexpr int groups = 16 / bank;
    alignas(64) int32_t keys[256], sorted[256];
    for (int run = 0; run < 16; ++run) store(keys + 16 * run, keys_at<Bits, absolute>(data + 16 * run, seen));
    transpose(keys, sorted);
    for (int group = 0; group < groups; ++group) sort_tile<bank>(sorted + 16 * bank * group);
    for (int run = 0; run < 16; ++run) {
        alignas(64) int32_t limits[16];
        int wanted = 0;
        for (int group = 0; group < groups; ++group) {
            const int drop = drops[run * groups + group];
            const int32_t limit = drop ? sorted[16 * (bank * group + drop - 1) + run] : prunus::selection::lowest - 1;
            for (int i = 0; i < bank; ++i) limits[bank * group + i] = limit;
            wanted += drop;
        }
        const Keys limit = load(limits), mine = load(keys + 16 * run);
        const unsigned less = above(limit, mine), equal = same(limit, mine);
        unsigned drop = less | equal;
        if (ones(drop) != wanted) {
            drop = 0;
            for (int group = 0; group < groups; ++group) {
                const unsigned field = ((1u << bank) - 1) << (bank * group);
                drop |= with_ties(less & field, equal & field, drops[run * groups + group]);
            }
        }
        spread(out + 16 * run, 0xffffu & ~drop);
    }
}

template <typename Bits, bool absolute, int bank>
void narrow_run(const Bits *data, size_t n, const int32_t *drops, size_t period, uint8_t *out, Tally *tally) {
    Keys seen = splat(0);
    size_t next = 0;
    int32_t wanted[256 / bank];
    for (size_t i = 0; i < n; i += 256) {
        const size_t here = n - i < 256 ? n - i : 256;
        for (size_t b = 0; b < 256 / bank; ++b) {
            wanted[b] = b * bank < here ? drops[next] : 0;
            next = next + 1 == period ? 0 : next + 1;
        }
        if (here == 256) {
            tile_banks<Bits, absolute, bank>(data + i, wanted, out + i, seen);
            continue;
        }
        Bits rest[256] = {};
        uint8_t kept[256];
        for (size_t k = 0; k < here; ++k) rest[k] = data[i + k];
        tile_banks<Bits, absolute, bank>(rest, wanted, kept, seen);
        for (size_t k = 0; k < here; ++k) out[i + k] = kept[k];
    }
    note(tally, seen);
}

// One bank whose limit is known: scalar, for banks that fit no register.
template <typename Bits, bool absolute>
void mark_bank(const Bits *data, int bank, int32_t limit, int count, uint8_t *out, Tally *tally) {
    int dropped = 0;
    for (int i = 0; i < bank; ++i) {
        const bool less = key_of<Bits, absolute>(data[i]) < limit;
        out[i] = !less;
        dropped += less;
        note_one(tally, data[i]);
    }
    for (int i = 0; i < bank && dropped < count; ++i)
        if (key_of<Bits, absolute>(data[i]) == limit) {
            out[i] = 0;
            ++dropped;
        }
}

template <typename Bits, bool absolute>
void wide_run(const Bits *data, size_t rows, size_t whole, size_t stride, int bank, const int32_t *drops, uint8_t *out,
              Tally *tally) {
    alignas(64) int32_t sorted[16 * prunus::selection::widest_network];
    const size_t total = rows * whole;
    for (size_t first = 0; first < total; first += 16) {
        const size_t lanes = total - first < 16 ? total - first : 16;
        size_t start[16], number[16];
        for (size_t lane = 0; lane < 16; ++lane) {  // idle lanes repeat the last bank
            const size_t b = first + (lane < lanes ? lane : lanes - 1);
            number[lane] = b % whole;
            start[lane] = b / whole * stride + number[lane] * size_t(bank);
            for (int i = 0; i < bank; ++i)
                sorted[16 * size_t(i) + lane] = key_of<Bits, absolute>(data[start[lane] + size_t(i)]);
        }
        sort_rows(sorted, bank);
        for (size_t lane = 0; lane < lanes; ++lane) {
            const int drop = drops[number[lane]];
            const int32_t limit = drop ? sorted[16 * size_t(drop - 1) + lane] : prunus::selection::lowest - 1;
            mark_bank<Bits, absolute>(data + start[lane], bank, limit, drop, out + start[lane], tally);
        }
    }
}

// The table entries: the choice between values and magnitudes is made once for each block.
template <typename Bits>
int32_t *scan_entry(const Bits *data, size_t n, bool absolute, int32_t low, int32_t high, int32_t *found,
                    Tally *tally) {
    return absolute ? scan_keys<Bits, true>(data, n, low, high, found, tally)
                    : scan_keys<Bits, false>(data, n, low, high, found, tally);
}

template <typename Bits>
void count_entry(const Bits *data, size_t n, bool absolute, int32_t threshold, Tally *tally) {
    absolute ? count_keys<Bits, true>(data, n, threshold, tally) : count_keys<Bits, false>(data, n, threshold, tally);
}

template <typename Bits>
void mark_entry(const Bits *data, size_t n, bool absolute, int32_t threshold, uint8_t *out, Tally *tally) {
    absolute ? mark_keys<Bits, true>(data, n, threshold, out, tally)
             : mark_keys<Bits, false>(data, n, threshold, out, tally);
}

template <typename Bits, int bank>
void narrow_sized(const Bits *data, size_t n, bool absolute, const int32_t *drops, size_t period, uint8_t *out,
                  Tally *tally) {
    absolute ? narrow_run<Bits, true, bank>(data, n, drops, period, out, tally)
             : narrow_run<Bits, false, bank>(data, n, drops, period, out, tally);
}

template <typename Bits>
void narrow_entry(const Bits *data, size_t n, bool absolute, int bank, const int32_t *drops, size_t period,
                  uint8_t *out, Tally *tally) {
    if (bank == 16) narrow_sized<Bits, 16>(data, n, absolute, drops, period, out, tally);
    if (bank == 8) narrow_sized<Bits, 8>(data, n, absolute, drops, period, out, tally);
    if (bank == 4) narrow_sized<Bits, 4>(data, n, absolute, drops, period, out, tally);
}

template <typename Bits>
void wide_entry(const Bits *data, size_t rows, size_t whole, size_t stride, bool absolute, int bank,
                const int32_t *drops, uint8_t *out, Tally *tally) {
    absolute ? wide_run<Bits, true>(data, rows, whole, stride, bank, drops, out, tally)
             : wide_run<Bits, false>(data, rows, whole, stride, bank, drops, out, tally);
}

template <typename Bits>
constexpr prunus::selection::BlockKernels<Bits> kernel_table() {
    return {scan_entry<Bits>, count_entry<Bits>, mark_entry<Bits>, narrow_entry<Bits>, wide_entry<Bits>};
}
