// Selection without assumptions about the processor: plain loops over sixteen lanes, which compilers vectorise as they can.
#include "select.h"

namespace {

struct Keys {
    std::int32_t lane[16];
};

#define PRUNUS_LANES(expression)                             \
    Keys out;                                                \
    for (int i = 0; i < 16; ++i) out.lane[i] = (expression); \
    return out

inline Keys load(const std::int32_t *from) { PRUNUS_LANES(from[i]); }
inline Keys load(const std::int16_t *from) { PRUNUS_LANES(from[i]); }
inline Keys splat(std::int32_t value) { PRUNUS_LANES(value); }
inline Keys both(const Keys &a, const Keys &b) { PRUNUS_LANES(a.lane[i] & b.lane[i]); }
inline Keys larger(const Keys &a, const Keys &b) { PRUNUS_LANES(a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]); }
inline Keys negate_where(const Keys &magnitude, const Keys &bits) {
    PRUNUS_LANES(bits.lane[i] < 0 ? -magnitude.lane[i] : magnitude.lane[i]);
}

inline void store(std::int32_t *to, const Keys &keys) {
    for (int i = 0; i < 16; ++i) to[i] = keys.lane[i];
}

inline std::int32_t largest_of(const Keys &keys) {
    std::int32_t top = keys.lane[0];
    for (int i = 1; i < 16; ++i) top = keys.lane[i] > top ? keys.lane[i] : top;
    return top;
}

inline unsigned above(const Keys &a, const Keys &b) {
    unsigned bits = 0;
    for (int i = 0; i < 16; ++i) bits |= unsigned(a.lane[i] > b.lane[i]) << i;
    return bits;
}

inline unsigned same(const Keys &a, const Keys &b) {
    unsigned bits = 0;
    for (int i = 0; i < 16; ++i) bits |= unsigned(a.lane[i] == b.lane[i]) << i;
    return bits;
}

inline std::int32_t *append(std::int32_t *to, const Keys &keys, unsigned bits) {
    for (; bits; bits &= bits - 1) *to++ = keys.lane[__builtin_ctz(bits)];
    return to;
}

inline void spread(std::uint8_t *to, unsigned bits) {
    for (int i = 0; i < 16; ++i) to[i] = std::uint8_t(bits >> i & 1);
}

inline void transpose(const std::int32_t *from, std::int32_t *to) {
    for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 16; ++j) to[16 * j + i] = from[16 * i + j];
}

inline void exchange(std::int32_t *low, std::int32_t *high) {
    for (int i = 0; i < 16; ++i) {
        const std::int32_t a = low[i], b = high[i];
        low[i] = a < b ? a : b;
        high[i] = a < b ? b : a;
    }
}

void sort_rows(std::int32_t *rows, int size);
template <int bank>
inline void sort_tile(std::int32_t *rows) {
    sort_rows(rows, bank);
}

#include "body.h"

}  // namespace

namespace prunus::selection {
const Kernels portable_kernels = {kernel_table<std::int32_t>(), kernel_table<std::int16_t>()};
}
