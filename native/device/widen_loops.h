// Reductions of 16-bit elements that stay float32, included like kernel_loops.h after the target pragma.
#pragma once

#include "device/convert_loops.h"
#include "device/kernel_table.h"
#include "device/vectors.h"

namespace ringtune::device {
namespace {

/// `Unroll` vectors of elements from the `first` on.
template <typename In, typename Op, std::size_t L, std::size_t Unroll>
[[gnu::always_inline]] inline void widen_at(const WidenJob& job, std::size_t first, std::byte* out,
                                            float factor) noexcept {
  Vector<float, 4 * L> sum[Unroll];
  for (std::size_t u = 0; u < Unroll; ++u) sum[u] = In::template load<L>(job.in[0] + (first + u * L) * In::kBytes);
  for (std::size_t k = 1; k < job.n; ++k) {
    const std::byte* const next = job.in[k] + first * In::kBytes;
    for (std::size_t u = 0; u < Unroll; ++u) {
      sum[u] = Op::apply(sum[u], In::template load<L>(next + u * L * In::kBytes));
    }
  }
  for (std::size_t u = 0; u < Unroll; ++u) store_loose(out + u * L * sizeof(float), sum[u] * factor);
}

/// What is left after whole vectors: element by element, through a padded copy.
template <typename In, typename Op, std::size_t L>
void widen_rest(const WidenJob& job, std::size_t first, float factor) noexcept {
  const std::size_t count = job.count - first;
  std::byte padded[L * In::kBytes]{};
  __builtin_memcpy(padded, job.in[0] + first * In::kBytes, count * In::kBytes);
  Vector<float, 4 * L> sum = In::template load<L>(padded);
  for (std::size_t k = 1; k < job.n; ++k) {
    __builtin_memcpy(padded, job.in[k] + first * In::kBytes, count * In::kBytes);
    sum = Op::apply(sum, In::template load<L>(padded));
  }
  sum *= factor;
  __builtin_memcpy(job.out + first * sizeof(float), &sum, count * sizeof(float));
}

template <typename In, typename Op, std::size_t Bytes>
void widen(const WidenJob& job, float factor) {
  constexpr std::size_t kLanes = Bytes / sizeof(float);
  constexpr std::size_t kUnroll = 4;
  constexpr std::size_t kStep = kLanes * kUnroll;
  std::size_t i = 0;
  for (; job.count - i >= kStep; i += kStep) {
    widen_at<In, Op, kLanes, kUnroll>(job, i, job.out + i * sizeof(float), factor);
  }
  for (; job.count - i >= kLanes; i += kLanes) {
    widen_at<In, Op, kLanes, 1>(job, i, job.out + i * sizeof(float), factor);
  }
  if (i != job.count) widen_rest<In, Op, kLanes>(job, i, factor);
}

}  // namespace
}  // namespace ringtune::device
