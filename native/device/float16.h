// Conversions between float16 / bfloat16 bit patterns and float32: branch-free selects on 32-bit words, so that loops
// over them are vectorised by the compiler. Rounding is to nearest even; NaN stays NaN (quiet), infinities and
// subnormals are exact. Bit for bit what F16C does. Included by kernel files that are compiled for several instruction
// sets: everything has internal linkage, so that the linker never mixes the versions.
#pragma once

#include <cstdint>

namespace ringtune::device {
namespace {

[[gnu::always_inline]] inline float float_of(std::uint32_t bits) noexcept { return __builtin_bit_cast(float, bits); }
[[gnu::always_inline]] inline std::uint32_t bits_of(float value) noexcept {
  return __builtin_bit_cast(std::uint32_t, value);
}

/// `condition ? yes : no` by masks: a conditional float operation would keep the compiler from vectorising the loop.
[[gnu::always_inline]] inline std::uint32_t select(bool condition, std::uint32_t yes, std::uint32_t no) noexcept {
  const std::uint32_t mask = 0u - static_cast<std::uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

/// `half` in the low 16 bits. Source: F. Giesen, "half_to_float" (public domain).
[[gnu::always_inline]] inline float half_to_float(std::uint32_t half) noexcept {
  constexpr std::uint32_t kExponentMask = 0x7c00u << 13;
  constexpr std::uint32_t kRebias = (127u - 15u) << 23;
  const std::uint32_t shifted = (half & 0x7fffu) << 13;
  const std::uint32_t exponent = shifted & kExponentMask;
  const std::uint32_t normal = shifted + kRebias;
  const std::uint32_t special = normal + ((128u - 16u) << 23);  // infinity and NaN: exponent 255
  // A subnormal is read as 2^-14 * 1.m; taking 2^-14 away leaves 2^-14 * 0.m exactly.
  const std::uint32_t subnormal = bits_of(float_of(normal + (1u << 23)) - float_of(113u << 23));
  const std::uint32_t finite = select(exponent == 0, subnormal, normal);
  const std::uint32_t magnitude = select(exponent == kExponentMask, special, finite);
  return float_of(magnitude | (half & 0x8000u) << 16);
}

/// Result in the low 16 bits. Source: F. Giesen, "float_to_half_fast3_rtne" (public domain).
[[gnu::always_inline]] inline std::uint32_t float_to_half(float value) noexcept {
  constexpr std::uint32_t kInfinity = 255u << 23;
  constexpr std::uint32_t kOverflow = (127u + 16u) << 23;  // 65536: the first power of two beyond float16
  constexpr std::uint32_t kMagic = ((127u - 15u) + (23u - 10u) + 1u) << 23;
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  const std::uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  const std::uint32_t special = select(magnitude > kInfinity, nan, 0x7c00u);
  // Adding the magic number lets the float adder round at the place of the smallest subnormal.
  const std::uint32_t subnormal = bits_of(float_of(magnitude) + float_of(kMagic)) - kMagic;
  const std::uint32_t odd = (magnitude >> 13) & 1u;
  const std::uint32_t normal = (magnitude - ((127u - 15u) << 23) + 0xfffu + odd) >> 13;
  const std::uint32_t finite = select(magnitude < (113u << 23), subnormal, normal);
  const std::uint32_t result = select(magnitude >= kOverflow, special, finite);
  return result | (bits >> 16 & 0x8000u);
}

/// Rounds to bfloat16 and leaves it in the high 16 bits; the low ones are garbage (the caller masks or shifts).
[[gnu::always_inline]] inline std::uint32_t round_to_bfloat_high(float value) noexcept {
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t rounded = bits + 0x7fffu + (bits >> 16 & 1u);
  // Rounding could carry a NaN into the sign; set the quiet bit instead.
  return value != value ? (bits | 0x400000u) : rounded;
}

}  // namespace
}  // namespace ringtune::device
