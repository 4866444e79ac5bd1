// Sums of two float16 tensors for AVX-512 with AVX512_FP16.
#if defined(__x86_64__)

#include <immintrin.h>

#include <limits>
#include <type_traits>

#include "device/kernel_table.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c,avx512fp16"))), \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,f16c,avx512fp16")
#endif

#include "device/blocks_avx512.h"

namespace ringtune::device {
namespace {

using Half = HalfForm<HalfElement512, 16>;

/// The bits that float32 would give, without going through it. A sum of two float16 rounds to the same float16 whether
/// it is rounded to float32 before or not, which has more than twice as many digits. So does half of it (the mean of
/// two ranks): where that is subnormal the sum is so small that float16 holds it exactly. Only where the sum overflows
/// may half of it not: that is left to float32. These instructions heed neither of the flags that flush subnormals.
template <bool Twice>
void sum_of_two(const ReduceJob& job, bool halved) noexcept {
  constexpr std::size_t kUnroll = 4;
  constexpr std::size_t kVector = 64;
  constexpr std::size_t kStep = kUnroll * kVector;
  constexpr int kInfinite = 0x18;  // of either sign
  const __m512h half = _mm512_set1_ph(static_cast<_Float16>(0.5F));
  std::size_t at = job.begin;
  for (; job.end - at >= kStep; at += kStep) {
    __m512h sum[kUnroll];
    if constexpr (Twice) {
      for (std::size_t k = 0; k < 2; ++k) fetch_ahead<kStep>(job.in[k] + at);
    }
    for (std::size_t u = 0; u < kUnroll; ++u) {
      // Of two NaN the one that the compilers' sums take elsewhere.
      sum[u] =
          _mm512_add_ph(_mm512_loadu_ph(job.in[1] + at + u * kVector), _mm512_loadu_ph(job.in[0] + at + u * kVector));
    }
    if (halved) {
      __mmask32 infinite = 0;
      for (std::size_t u = 0; u < kUnroll; ++u) infinite |= _mm512_fpclass_ph_mask(sum[u], kInfinite);
      if (__builtin_expect(infinite != 0, 0)) {
        reduce_at<Half, Sum, 2, Twice, kStep / Half::kBytes>(job, at, 0.5F);
        continue;
      }
      for (std::size_t u = 0; u < kUnroll; ++u) sum[u] = _mm512_mul_ph(sum[u], half);
    }
    for (std::size_t u = 0; u < kUnroll; ++u) {
      _mm512_storeu_ph(job.out + at + u * kVector, sum[u]);
      if constexpr (Twice) _mm512_storeu_ph(job.also + at + u * kVector, sum[u]);
    }
  }
  ReduceJob rest = job;
  rest.begin = at;
  reduce_form<Half, Sum>(rest, halved ? 0.5F : 1.0F);
}

void sum_halves(const ReduceJob& job, double factor) {
  if (job.n != 2 || (factor != 1.0 && factor != 0.5)) return reduce_floats<Half, Sum>(job, factor);
  job.also == nullptr ? sum_of_two<false>(job, factor == 0.5) : sum_of_two<true>(job, factor == 0.5);
}

}  // namespace

const ReduceKernel kAvx512Fp16Sum = sum_halves;

}  // namespace ringtune::device

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif  // x86-64
