// Which instruction set runs: the best one the processor has, or the one PRUNUS_CPU names (portable, avx2, avx512, neon).
#pragma once

#include <cstdlib>
#include <cstring>

namespace prunus {

// Every aarch64 processor has NEON, and no processor has both that and AVX2.
enum class Level { portable = 0, avx2 = 1, neon = 1, avx512 = 2 };

inline const char *level_name(Level level) {
#ifdef PRUNUS_NEON
    return level == Level::neon ? "neon" : "portable";
#endif
    return level == Level::avx512 ? "avx512" : level == Level::avx2 ? "avx2" : "portable";
}

inline Level best_level() {
#ifdef PRUNUS_X86
    __builtin_cpu_init();
    // Every feature that the compiler flags of a level allow must be there: the compiler may use any of them anywhere.
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (avx2 && avx512) return Level::avx512;
    if (avx2) return Level::avx2;
#endif
#ifdef PRUNUS_NEON
    return Level::neon;
#endif
    return Level::portable;
}

// Whether the processor multiplies bytes four at a time; which of the two encodings it knows is another matter.
inline bool has_avx512_vnni() {
#ifdef PRUNUS_X86
    return best_level() == Level::avx512 && __builtin_cpu_supports("avx512vnni");
#else
    return false;
#endif
}
inline bool has_avx_vnni() {
#if defined(PRUNUS_X86) && defined(PRUNUS_AVX_VNNI)
    return best_level() >= Level::avx2 && __builtin_cpu_supports("avxvnni");
#else
    return false;
#endif
}

// A forced level above what the processor has is lowered to what it has: the request can never crash.
inline Level chosen_level() {
    const Level best = best_level();
    const char *forced = std::getenv("PRUNUS_CPU");
    if (forced == nullptr) return best;
    Level wanted = best;
    if (std::strcmp(forced, "portable") == 0) wanted = Level::portable;
    if (std::strcmp(forced, "avx2") == 0) wanted = Level::avx2;
    return wanted < best ? wanted : best;
}

// The level a caller names ("" for the one chosen at load), lowered to what the processor has.
inline Level level_named(const char *name) {
    static const Level chosen = chosen_level(), best = best_level();
    Level level = chosen;
    if (std::strcmp(name, "portable") == 0) level = Level::portable;
    if (std::strcmp(name, "avx2") == 0) level = Level::avx2;
    if (std::strcmp(name, "avx512") == 0) level = Level::avx512;
    return level < best ? level : best;
}

}  // namespace prunus
