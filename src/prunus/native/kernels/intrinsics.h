// Intrinsics up to AVX-512, or SIMDe's functions of the same names, with which the tests compile the files that no machine
// at hand can run.
#pragma once

#ifdef PRUNUS_EMULATE_AVX512
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#else
#include <immintrin.h>
#endif
