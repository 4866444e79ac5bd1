// bfloat16 in vectors of 64 bytes: how two vectors of float32, the even and the odd elements, are rounded and put
// together. Included after the target pragma. Both ways give the bits of BfloatPairs: what is rare is left to it.
#pragma once

#include "device/f16c.h"

namespace ringtune::device {
namespace {

struct HalfElement512 : F16cElement {
  // The unmasked intrinsics trip GCC 12's false "maybe uninitialized"; a full mask compiles to the same instruction.
  static constexpr __mmask16 kAll = 0xffff;
  template <std::size_t L>
  [[gnu::always_inline]] static Vector<float, 4 * L> load(const std::byte* at) noexcept {
    if constexpr (L == 16) {
      return _mm512_maskz_cvtph_ps(kAll, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
    } else {
      return F16cElement::load<L>(at);
    }
  }
  template <std::size_t L>
  [[gnu::always_inline]] static auto store(std::byte* at, Vector<float, 4 * L> value) noexcept {
    if constexpr (L == 16) {
      const __m256i half = _mm512_maskz_cvtps_ph(kAll, value, _MM_FROUND_TO_NEAREST_INT);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), half);
      return half;
    } else {
      return F16cElement::store<L>(at, value);
    }
  }
};

/// The bits of BfloatPairs; what is rare is left to it.
/// Rounding by adding half a unit and making a tie even: a NaN, which it could turn into something else, is rare.
struct RoundedBfloat : BfloatPairs<64> {
  [[gnu::always_inline]] static __m512i rounded(__m512 value) noexcept {
    const __m512i up = _mm512_add_epi32(_mm512_castps_si512(value), _mm512_set1_epi32(0x8000));
    const __mmask16 tie = _mm512_testn_epi32_mask(up, _mm512_set1_epi32(0xffff));
    return _mm512_mask_and_epi32(up, tie, up, _mm512_set1_epi32(~0x10000));
  }
  [[gnu::always_inline]] static __m512i store(std::byte* at, Value value) noexcept {
    if (__builtin_expect(_mm512_cmp_ps_mask(value.low, value.high, _CMP_UNORD_Q) != 0, 0)) {
      return __builtin_bit_cast(__m512i, BfloatPairs<64>::store(at, value));
    }
    const __m512i low = _mm512_maskz_srli_epi32(0xffff, rounded(value.low), 16);
    const __m512i both = _mm512_mask_blend_epi16(0xaaaaaaaau, low, rounded(value.high));
    _mm512_storeu_si512(at, both);
    return both;
  }
};

}  // namespace
}  // namespace ringtune::device
