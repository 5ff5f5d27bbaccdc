// An 8 x 8 block of floats, transposed in registers; included inside an anonymous namespace.

inline void transpose8(const float *from, int64_t ldf, float *to, int64_t ldt) {
    __m256 a[8], b[8];
    for (int i = 0; i < 4; ++i) {
        a[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(from + i * ldf)),
                                    _mm_loadu_ps(from + (i + 4) * ldf), 1);
        a[i + 4] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(from + i * ldf + 4)),
                                        _mm_loadu_ps(from + (i + 4) * ldf + 4), 1);
    }
    for (int h = 0; h < 8; h += 4) {
        b[h] = _mm256_unpacklo_ps(a[h], a[h + 1]);
        b[h + 1] = _mm256_unpackhi_ps(a[h], a[h + 1]);
        b[h + 2] = _mm256_unpacklo_ps(a[h + 2], a[h + 3]);
        b[h + 3] = _mm256_unpackhi_ps(a[h + 2], a[h + 3]);
        _mm256_storeu_ps(to + (h + 0) * ldt, _mm256_shuffle_ps(b[h], b[h + 2], 0x44));
        _mm256_storeu_ps(to + (h + 1) * ldt, _mm256_shuffle_ps(b[h], b[h + 2], 0xEE));
        _mm256_storeu_ps(to + (h + 2) * ldt, _mm256_shuffle_ps(b[h + 1], b[h + 3], 0x44));
        _mm256_storeu_ps(to + (h + 3) * ldt, _mm256_shuffle_ps(b[h + 1], b[h + 3], 0xEE));
    }
}

// Sixteen rows of four floats: to[j][i] = from[i][j].
inline void transpose4(const float *from, int64_t ldf, float *to, int64_t ldt) {
    __m256 out[2][4];
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h, from += 8 * ldf) {
        __m256 a[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i)
            a[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(from + i * ldf)),
                                        _mm_loadu_ps(from + (i + 4) * ldf), 1);
        const __m256 b0 = _mm256_unpacklo_ps(a[0], a[1]), b1 = _mm256_unpackhi_ps(a[0], a[1]);
        const __m256 b2 = _mm256_unpacklo_ps(a[2], a[3]), b3 = _mm256_unpackhi_ps(a[2], a[3]);
        out[h][0] = _mm256_shuffle_ps(b0, b2, 0x44), out[h][1] = _mm256_shuffle_ps(b0, b2, 0xEE);
        out[h][2] = _mm256_shuffle_ps(b1, b3, 0x44), out[h][3] = _mm256_shuffle_ps(b1, b3, 0xEE);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
        _mm256_storeu_ps(to + j * ldt, out[0][j]);
        _mm256_storeu_ps(to + j * ldt + 8, out[1][j]);
    }
}
