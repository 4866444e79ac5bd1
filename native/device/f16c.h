// float16 by the conversion instructions of F16C, as an `Element` (convert_loops.h) and as a `Form`
// (kernel_loops.h). Included by the x86 kernel files after their target pragma.
#pragma once

#include "device/kernel_loops.h"

namespace ringtune::device {
namespace {

struct F16cElement {
  using Lane = float;
  static constexpr std::size_t kBytes = 2;
  template <std::size_t L>
  [[gnu::always_inline]] static Vector<float, 4 * L> load(const std::byte* at) noexcept {
    if constexpr (L == 4) {
      return _mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)));
    } else {
      static_assert(L == 8);
      return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
    }
  }
  template <std::size_t L>
  [[gnu::always_inline]] static __m128i store(std::byte* at, Vector<float, 4 * L> value) noexcept {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT;
    if constexpr (L == 4) {
      const __m128i half = _mm_cvtps_ph(value, kNearest);
      _mm_storel_epi64(reinterpret_cast<__m128i*>(at), half);
      return half;
    } else {
      static_assert(L == 8);
      const __m128i half = _mm256_cvtps_ph(value, kNearest);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(at), half);
      return half;
    }
  }
};

template <typename Element, std::size_t L>
struct HalfForm {
  using Scalar = float;
  using Value = Vector<float, 4 * L>;
  static constexpr std::size_t kBytes = 2 * L;
  [[gnu::always_inline]] static Value load(const std::byte* at) noexcept { return Element::template load<L>(at); }
  [[gnu::always_inline]] static auto store(std::byte* at, Value value) noexcept {
    const auto written = Element::template store<L>(at, value);
    static_assert(sizeof written == kBytes);
    return written;
  }
};

}  // namespace
}  // namespace ringtune::device
