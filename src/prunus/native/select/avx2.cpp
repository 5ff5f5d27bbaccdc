// avx2
