// Decoding of indices with AVX2; included inside an anonymous namespace.

// Where the columns of sixteen lanes lie: out[i] = base + index[i] * stride, the index in the low four bits of the
// packet's bytes, in the high four, or in all eight.
template <typename Offset>
struct Placer {
    const uint32_t stride;
    static __m128i bytes(const uint8_t *packet) { return _mm_loadu_si128(reinterpret_cast<const __m128i *>(packet)); }
    void put(__m128i j, uint32_t base, uint16_t *out) const {
        const __m256i scaled = _mm256_mullo_epi16(_mm256_cvtepu8_epi16(j), _mm256_set1_epi16(short(stride)));
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(out), _mm256_add_epi16(scaled, _mm256_set1_epi16(short(base))));
    }
    void put(__m128i j, uint32_t base, uint32_t *out) const {
        const __m256i step = _mm256_set1_epi32(int(stride)), start = _mm256_set1_epi32(int(base));
        for (int i = 0; i < lanes; i += 8, j = _mm_srli_si128(j, 8)) {
            const __m256i wide = _mm256_cvtepu8_epi32(j);
            // Both factors mostly fit 16 bits, and their product is then one operation instead of two.
            const __m256i scaled = stride < 32768 ? _mm256_madd_epi16(wide, step) : _mm256_mullo_epi32(wide, step);
            _mm256_storeu_si256(reinterpret_cast<__m256i *>(out + i), _mm256_add_epi32(scaled, start));
        }
    }
    void low(const uint8_t *packet, uint32_t base, Offset *out) const {
        put(_mm_and_si128(bytes(packet), _mm_set1_epi8(15)), base, out);
    }
    void high(const uint8_t *packet, uint32_t base, Offset *out) const {
        put(_mm_and_si128(_mm_srli_epi16(bytes(packet), 4), _mm_set1_epi8(15)), base, out);
    }
    void whole(const uint8_t *packet, uint32_t base, Offset *out) const { put(bytes(packet), base, out); }
};
