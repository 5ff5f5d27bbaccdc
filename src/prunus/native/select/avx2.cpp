// Selection with 256-bit registers: sixteen keys are two of them.
#include "select.h"

#include <immintrin.h>

#include <utility>

namespace {

using Lanes = __m256i;
constexpr int lane_count = 8;

inline Lanes lanes_at(const std::int32_t *from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from)); }
inline void lanes_to(std::int32_t *to, Lanes lanes) { _mm256_storeu_si256(reinterpret_cast<__m256i *>(to), lanes); }
inline Lanes lower(Lanes a, Lanes b) { return _mm256_min_epi32(a, b); }
inline Lanes upper(Lanes a, Lanes b) { return _mm256_max_epi32(a, b); }

#include "network.h"

struct Keys {
    __m256i first, second;
};

inline Keys load(const std::int32_t *from) { return {lanes_at(from), lanes_at(from + 8)}; }

inline Keys load(const std::int16_t *from) {
    const __m256i packed = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from));
    return {_mm256_cvtepi16_epi32(_mm256_castsi256_si128(packed)),
            _mm256_cvtepi16_epi32(_mm256_extracti128_si256(packed, 1))};
}

inline void store(std::int32_t *to, Keys keys) {
    lanes_to(to, keys.first);
    lanes_to(to + 8, keys.second);
}

inline Keys splat(std::int32_t value) { return {_mm256_set1_epi32(value), _mm256_set1_epi32(value)}; }

inline Keys both(Keys a, Keys b) { return {_mm256_and_si256(a.first, b.first), _mm256_and_si256(a.second, b.second)}; }

inline Keys larger(Keys a, Keys b) { return {upper(a.first, b.first), upper(a.second, b.second)}; }

inline __m256i negate_where(__m256i magnitude, __m256i bits) {
    const __m256i sign = _mm256_srai_epi32(bits, 31);
    return _mm256_sub_epi32(_mm256_xor_si256(magnitude, sign), sign);
}

inline Keys negate_where(Keys magnitude, Keys bits) {
    return {negate_where(magnitude.first, bits.first), negate_where(magnitude.second, bits.second)};
}

inline std::int32_t largest_of(Keys keys) {
    alignas(32) std::int32_t lanes[8];
    lanes_to(lanes, upper(keys.first, keys.second));
    std::int32_t top = lanes[0];
    for (int i = 1; i < 8; ++i) top = lanes[i] > top ? lanes[i] : top;
    return top;
}

inline unsigned bits_of(__m256i mask) { return unsigned(_mm256_movemask_ps(_mm256_castsi256_ps(mask))); }

inline unsigned above(Keys a, Keys b) {
    return bits_of(_mm256_cmpgt_epi32(a.first, b.first)) | bits_of(_mm256_cmpgt_epi32(a.second, b.second)) << 8;
}

inline unsigned same(Keys a, Keys b) {
    return bits_of(_mm256_cmpeq_epi32(a.first, b.first)) | bits_of(_mm256_cmpeq_epi32(a.second, b.second)) << 8;
}

inline std::int32_t *append(std::int32_t *to, Keys keys, unsigned bits) {
    alignas(32) std::int32_t lanes[16];
    store(lanes, keys);
    for (; bits; bits &= bits - 1) *to++ = lanes[__builtin_ctz(bits)];
    return to;
}

inline void spread(std::uint8_t *to, unsigned bits) {
    const __m128i picks = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m128i places = _mm_set1_epi64x(std::int64_t(0x8040201008040201ull));
    const __m128i mine = _mm_and_si128(_mm_shuffle_epi8(_mm_cvtsi32_si128(int(bits)), picks), places);
    const __m128i set = _mm_and_si128(_mm_cmpeq_epi8(mine, places), _mm_set1_epi8(1));
    _mm_storeu_si128(reinterpret_cast<__m128i *>(to), set);
}

inline __m256i mixed_low(__m256i a, __m256i b) {
    return _mm256_castpd_si256(_mm256_unpacklo_pd(_mm256_castsi256_pd(a), _mm256_castsi256_pd(b)));
}

inline __m256i mixed_high(__m256i a, __m256i b) {
    return _mm256_castpd_si256(_mm256_unpackhi_pd(_mm256_castsi256_pd(a), _mm256_castsi256_pd(b)));
}

// Eight rows of eight, 16 apart in both places. Rows i and i + 4 share a register from the start, so that all the
// mixing happens inside 128-bit halves.
inline void transpose8(const std::int32_t *from, std::int32_t *to) {
    for (int part = 0; part < 2; ++part) {
        __m256i row[4];
        for (int i = 0; i < 4; ++i) {
            const auto *top = reinterpret_cast<const __m128i *>(from + 16 * i + 4 * part);
            const auto *bottom = reinterpret_cast<const __m128i *>(from + 16 * (i + 4) + 4 * part);
            row[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(top)), _mm_loadu_si128(bottom), 1);
        }
        const __m256i a = _mm256_unpacklo_epi32(row[0], row[1]), b = _mm256_unpackhi_epi32(row[0], row[1]);
        const __m256i c = _mm256_unpacklo_epi32(row[2], row[3]), d = _mm256_unpackhi_epi32(row[2], row[3]);
        lanes_to(to + 16 * (4 * part + 0), mixed_low(a, c));
        lanes_to(to + 16 * (4 * part + 1), mixed_high(a, c));
        lanes_to(to + 16 * (4 * part + 2), mixed_low(b, d));
        lanes_to(to + 16 * (4 * part + 3), mixed_high(b, d));
    }
}

inline void transpose(const std::int32_t *from, std::int32_t *to) {
    for (int i = 0; i < 16; i += 8)
        for (int j = 0; j < 16; j += 8) transpose8(from + 16 * i + j, to + 16 * j + i);
}

inline void exchange(std::int32_t *low, std::int32_t *high) {
    for (int part = 0; part < 16; part += 8) {
        const Lanes a = lanes_at(low + part), b = lanes_at(high + part);
        lanes_to(low + part, lower(a, b));
        lanes_to(high + part, upper(a, b));
    }
}

#include "body.h"

}  // namespace

namespace prunus::selection {
const Kernels avx2_kernels = {kernel_table<std::int32_t>(), kernel_table<std::int16_t>()};
}
