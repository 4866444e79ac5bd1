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

#include "device/kernel_loops.h"

namespace ringtune::device {
namespace {

struct Half8 {
  using Scalar = float;
  using Value = __m256;
  static constexpr std::size_t kBytes = 16;
  [[gnu::always_inline]] static inline __m256 load(const std::byte* at) noexcept {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
  }
  [[gnu::always_inline]] static inline void store(std::byte* at, __m256 value) noexcept {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
  }
};

}  // namespace

const KernelTable kAvx2Kernels = make_table<32, Half8, BfloatPairs<32>>("avx2");

}  // namespace ringtune::device

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif  // x86-64
