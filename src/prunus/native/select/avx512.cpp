// avx512
