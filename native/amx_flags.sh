#!/bin/sh
# Prints the compiler flags that llama.cpp needs on this machine, usually none.
#
# GCC before 11.5, 12.4 and 13.3 (bug 114098) drops the stores to the AMX tile configuration when it
# optimises; on a processor with AMX, llama.cpp then dies with "Illegal instruction" at the first
# pass over a quantized model.  The probe does what llama.cpp does: where it dies, AMX stays off.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cat >"$directory/probe.cpp" <<'CPP'
#include <cstdint>
#if defined(__AMX_INT8__) && defined(__linux__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
struct config_t {
    uint8_t palette = 0, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
};
__attribute__((noinline)) static void configure() {
    alignas(64) config_t config = {};
    config.palette = 1;
    for (int tile = 0; tile < 8; tile++) config.rows[tile] = 16, config.bytes[tile] = 64;
    _tile_loadconfig(&config);
}
int main() {
    if (syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18)) return 0;
    configure();
    _tile_zero(4);
    return 0;
}
#else
int main() { return 0; }
#endif
CPP
build() {
    "${CXX:-c++}" -std=c++17 -O3 -march=native "$directory/probe.cpp" -o "$directory/probe"
}
# In a shell of its own, since a shell reports the crash of its child.
if build 2>/dev/null && ! sh -c 'ulimit -c 0; "$0"; exit $?' "$directory/probe" 2>/dev/null; then
    echo "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
fi
