// Kernels for AVX-512 (F, BW, DQ, VL).
#if defined(__x86_64__)

#include <immintrin.h>

#include <limits>
#include <type_traits>

#include "device/kernel_table.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,f16c")
#endif

#include "device/blocks_avx512.h"

namespace ringtune::device {

const KernelTable kAvx512Kernels =
    make_table<64, HalfForm<HalfElement512, 16>, RoundedBfloat, HalfElement512>("avx512");

}  // namespace ringtune::device

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif  // x86-64
