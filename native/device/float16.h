// Conversions between float16 / bfloat16 bit patterns and float32, on whole vectors: arithmetic and masks only, so they
// serve every instruction set. Rounding is to nearest even; NaN stays NaN (quiet), infinities and subnormals are exact.
// Bit for bit what F16C does. Included by kernel files that are compiled for several instruction sets: everything has
// internal linkage, so that the linker never mixes the versions.
#pragma once

#include "device/vectors.h"

namespace ringtune::device {
namespace {

template <std::size_t Bytes>
struct Bits16 {
  using U32 = Vector<std::uint32_t, Bytes>;
  using F32 = Vector<float, Bytes>;

  /// A comparison's lanes are all ones or all zeros.
  template <typename Mask>
  [[gnu::always_inline]] static U32 select(Mask condition, U32 yes, U32 no) noexcept {
    const U32 mask = __builtin_bit_cast(U32, condition);
    return (yes & mask) | (no & ~mask);
  }

  /// float16 in the low 16 bits of each lane. Source: F. Giesen, "half_to_float" (public domain).
  [[gnu::always_inline]] static F32 half_to_float(U32 half) noexcept {
    constexpr std::uint32_t kExponentMask = 0x7c00u << 13;
    constexpr std::uint32_t kRebias = (127u - 15u) << 23;
    const U32 shifted = (half & 0x7fffu) << 13;
    const U32 exponent = shifted & kExponentMask;
    const U32 normal = shifted + kRebias;
    // Infinity and NaN: exponent 255; a NaN is made quiet as by the processors' own conversion.
    const U32 special = normal + ((128u - 16u) << 23);
    const U32 quiet = special | select((shifted & 0x7fffffu) != 0u, U32{} + 0x400000u, U32{});
    // A subnormal is read as 2^-14 * 1.m; taking 2^-14 away leaves 2^-14 * 0.m exactly.
    const F32 two_to_minus_14 = __builtin_bit_cast(F32, U32{} + (113u << 23));
    const U32 subnormal = __builtin_bit_cast(U32, __builtin_bit_cast(F32, normal + (1u << 23)) - two_to_minus_14);
    const U32 finite = select(exponent == 0u, subnormal, normal);
    const U32 magnitude = select(exponent == kExponentMask, quiet, finite);
    return __builtin_bit_cast(F32, magnitude | (half & 0x8000u) << 16);
  }

  /// Result in the low 16 bits, the others are 0. Source: F. Giesen, "float_to_half_fast3_rtne" (public domain).
  [[gnu::always_inline]] static U32 float_to_half(F32 value) noexcept {
    constexpr std::uint32_t kInfinity = 255u << 23;
    constexpr std::uint32_t kOverflow = (127u + 16u) << 23;  // 65536: the first power of two beyond float16
    constexpr std::uint32_t kMagic = ((127u - 15u) + (23u - 10u) + 1u) << 23;
    const U32 bits = __builtin_bit_cast(U32, value);
    const U32 magnitude = bits & 0x7fffffffu;
    const U32 nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    const U32 special = select(magnitude > kInfinity, nan, U32{} + 0x7c00u);
    // Adding the magic number lets the float adder round at the place of the smallest subnormal.
    const F32 magic = __builtin_bit_cast(F32, U32{} + kMagic);
    const U32 subnormal = __builtin_bit_cast(U32, __builtin_bit_cast(F32, magnitude) + magic) - kMagic;
    const U32 odd = (magnitude >> 13) & 1u;
    const U32 normal = (magnitude - ((127u - 15u) << 23) + 0xfffu + odd) >> 13;
    const U32 finite = select(magnitude < (113u << 23), subnormal, normal);
    return select(magnitude >= kOverflow, special, finite) | (bits >> 16 & 0x8000u);
  }

  /// Rounds to bfloat16 and leaves it in the high 16 bits; the low ones are garbage (the caller masks or shifts).
  [[gnu::always_inline]] static U32 round_to_bfloat_high(F32 value) noexcept {
    const U32 bits = __builtin_bit_cast(U32, value);
    const U32 rounded = bits + 0x7fffu + (bits >> 16 & 1u);
    // Rounding could carry a NaN into the sign; set the quiet bit instead.
    return select(value != value, bits | 0x400000u, rounded);
  }
};

}  // namespace
}  // namespace ringtune::device
