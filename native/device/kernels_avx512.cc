// Kernels for AVX-512 (F, BW, DQ, VL). bfloat16 stays with integer rounding: the conversion of AVX512_BF16 flushes
// subnormals to zero, and a result must not depend on which rank's processor computed it.
#if defined(__x86_64__)

#include <immintrin.h>

#include <limits>
#include <type_traits>

#include "device/kernel_table.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl")
#endif

#include "device/kernel_loops.h"

namespace ringtune::device {
namespace {

struct Half16 {
  using Scalar = float;
  using Value = __m512;
  static constexpr std::size_t kBytes = 32;
  // The unmasked forms trip GCC 12's false "maybe uninitialized"; a full mask compiles to the same instruction.
  static constexpr __mmask16 kAll = 0xffff;
  [[gnu::always_inline]] static inline __m512 load(const std::byte* at) noexcept {
    return _mm512_maskz_cvtph_ps(kAll, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
  }
  [[gnu::always_inline]] static inline void store(std::byte* at, __m512 value) noexcept {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), _mm512_maskz_cvtps_ph(kAll, value, _MM_FROUND_TO_NEAREST_INT));
  }
};

}  // namespace

const KernelTable kAvx512Kernels = make_table<64, Half16, BfloatPairs<64>>("avx512");

}  // namespace ringtune::device

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif  // x86-64
