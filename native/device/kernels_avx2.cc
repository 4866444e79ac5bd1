// Kernels for AVX2 with F16C. Compiled into every x86-64 build, called only where the processor has both.
#if defined(__x86_64__)

#include <immintrin.h>

#include <limits>
#include <type_traits>

#include "device/kernel_table.h"

// From here to the end of the file; the library headers above keep the baseline (see kernel_loops.h).
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,f16c")
#endif

#include "device/f16c.h"

namespace ringtune::device {

const KernelTable kAvx2Kernels = make_table<32, HalfForm<F16cElement, 8>, BfloatPairs<32>, F16cElement>("avx2");

}  // namespace ringtune::device

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif  // x86-64
