// What compilers spell differently.
#pragma once

#if defined(__x86_64__) || defined(_M_X64)
#define DYSPEC_X86_64 1
#elif defined(__aarch64__) || defined(_M_ARM64)
#define DYSPEC_AARCH64 1
#endif

// DYSPEC_WITH("avx2"): the function may use these instructions, whatever the file is compiled for.
// With Microsoft's compiler every function may use all of them.
#if defined(__GNUC__)
#define DYSPEC_WITH(instructions) __attribute__((target(instructions)))
#define DYSPEC_ALWAYS_INLINE inline __attribute__((always_inline))
#else
#define DYSPEC_WITH(instructions)
#define DYSPEC_ALWAYS_INLINE __forceinline
#endif
