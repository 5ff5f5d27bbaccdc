#!/bin/sh
# Compile the sparse kernels and their check, and run it: sanitize.sh [sanitize|emulate|neon] [cases]
#   sanitize  with the address and undefined-behaviour sanitizers (the default)
#   emulate   plainly, with the AVX-512 source compiled against SIMDe where its headers are installed
#   neon      for aarch64, run by qemu-aarch64 (Debian: g++-aarch64-linux-gnu, qemu-user)
set -eu
mode=${1:-sanitize}
cases=${2:-300}
here=$(cd "$(dirname "$0")" && pwd)
source=$here/../../src/prunus/native
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
compiler=${CXX:-g++}
run=
if [ "$mode" = neon ]; then
    compiler=aarch64-linux-gnu-g++
    run="qemu-aarch64 -L /usr/aarch64-linux-gnu"
fi
common="-std=c++20 -fno-math-errno -ffp-contract=off -Wno-psabi -I$source -I$source/kernels -I$here"
if [ "$mode" = sanitize ]; then
    common="$common -g -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
elif [ "$cases" -lt 100 ]; then
    common="$common -O1" # few cases: compiling takes most of the time
else
    common="$common -g -O2"
fi
wide="-mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mbmi -mbmi2"
if [ "$mode" != neon ] && echo '#include <simde/x86/avx512.h>' | $compiler -fsyntax-only -x c++ -std=c++20 - 2>/dev/null; then
    common="$common -DPRUNUS_EMULATE_AVX512"
    wide="-mavx2 -mfma -mbmi -mbmi2 -Wno-psabi"
fi
vnni=
case $common in *EMULATE*) vnni="$source/kernels/integer_avx512_vnni $source/kernels/integer_avx_vnni" ;; esac
own="$source/kernels/avx2 $source/kernels/avx512 $source/kernels/integer_avx2 $source/kernels/block_avx2 $vnni"
if [ "$mode" = neon ]; then own="$source/kernels/neon $source/kernels/integer_neon $source/kernels/block_neon"; fi
objects=
for unit in "$here/kernels_check" "$source/kernels/pack" "$source/kernels/linear" "$source/kernels/conv" "$source/kernels/depthwise" \
    "$source/kernels/places" "$source/kernels/program" "$source/kernels/pool" "$source/kernels/portable" \
    "$source/kernels/integer" "$source/kernels/integer_planes" "$source/kernels/integer_turned" "$source/kernels/integer_layout" "$source/kernels/integer_program" \
    "$source/kernels/integer_portable" \
    "$source/kernels/block" "$source/kernels/block_portable" "$source/kernels/recurrent" $own; do
    flags=
    case $unit in
    */avx2 | */integer_avx2 | */block_avx2) flags="-mavx2 -mfma -mf16c -mbmi -mbmi2" ;;
    */avx512 | *_vnni) flags=$wide ;;
    esac
    object=$work/$(basename "$unit").o
    $compiler $common $flags -c "$unit.cpp" -o "$object"
    objects="$objects $object"
done
$compiler $common $objects -o "$work/check" -lpthread
$run "$work/check" "$cases"
