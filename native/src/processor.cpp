// Intel's Software Developer's Manual, volume 1, 14.3 and 15.2: an instruction may be used if the
// processor has it and the operating system keeps its registers.
#include "processor.h"
#include "compiler.h"

#include <cstdint>

#if defined(DYSPEC_X86_64)
#include <immintrin.h>
#if defined(_WIN32)
#include <intrin.h>
#else
#include <cpuid.h>
#endif
#endif

namespace dyspec {

#if defined(DYSPEC_X86_64)

namespace {

struct Registers {
    uint32_t a, b, c, d;
};

Registers cpuid(uint32_t leaf) {
#if defined(_WIN32)
    int found[4];
    __cpuidex(found, int(leaf), 0);
    return {uint32_t(found[0]), uint32_t(found[1]), uint32_t(found[2]), uint32_t(found[3])};
#else
    Registers found;
    __cpuid_count(leaf, 0, found.a, found.b, found.c, found.d);
    return found;
#endif
}

constexpr uint32_t fma = 1u << 12, has_xgetbv = 1u << 27;                   // leaf 1, c
constexpr uint32_t avx2 = 1u << 5, avx512f = 1u << 16, avx512dq = 1u << 17; // leaf 7, b
constexpr uint64_t avx_registers = 0x6, avx512_registers = 0xe6;

DYSPEC_WITH("xsave") uint64_t kept_registers() {
    return (cpuid(1).c & has_xgetbv) != 0 ? _xgetbv(0) : 0;
}

bool has(uint32_t instructions, uint64_t registers) {
    return cpuid(0).a >= 7 && (cpuid(7).b & instructions) == instructions &&
           (kept_registers() & registers) == registers;
}

} // namespace

bool has_avx2() {
    return has(avx2, avx_registers) && (cpuid(1).c & fma) != 0;
}

bool has_avx512() {
    return has_avx2() && has(avx512f | avx512dq, avx512_registers);
}

#else

bool has_avx2() {
    return false;
}

bool has_avx512() {
    return false;
}

#endif

} // namespace dyspec
