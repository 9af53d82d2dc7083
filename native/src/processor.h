// The instructions that this processor and its operating system offer.
#pragma once

namespace dyspec {

// AVX2 and FMA.
bool has_avx2();

// AVX-512 F and DQ, besides those of has_avx2.
bool has_avx512();

} // namespace dyspec
