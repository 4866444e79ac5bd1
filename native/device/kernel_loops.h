// The loops behind KernelTable, written once and compiled per instruction set: a kernel file includes this after its
// target pragma. Internal linkage throughout and no call into library templates: an inline function compiled for
// AVX-512 that the linker picked for everybody would crash older processors.
//
// Plain loops over unaligned elements, which the compiler vectorises. float16/bfloat16 go two elements at a time as the
// halves of a 32-bit word, so no lane has to be packed or unpacked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "device/float16.h"
#include "device/kernel_table.h"

namespace ringtune::device {
namespace {

/// An element at any address, whatever type the memory was written as.
template <typename T>
struct [[gnu::packed, gnu::may_alias]] Loose {
  T value;
};

template <typename T>
Loose<T>* loose(std::byte* at) noexcept {
  return reinterpret_cast<Loose<T>*>(at);
}
template <typename T>
const Loose<T>* loose(const std::byte* at) noexcept {
  return reinterpret_cast<const Loose<T>*>(at);
}

/// Integer arithmetic wraps around, as torch's does: computed unsigned, and wide enough that nothing is promoted to
/// int.
template <typename T>
using Wrapping = std::conditional_t<(sizeof(T) < 4), std::uint32_t, std::make_unsigned_t<T>>;

struct Sum {
  template <typename T>
  [[gnu::always_inline]] static T apply(T a, T b) noexcept {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
    } else {
      return a + b;
    }
  }
};
struct Product {
  template <typename T>
  [[gnu::always_inline]] static T apply(T a, T b) noexcept {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
    } else {
      return a * b;
    }
  }
};
// A NaN on either side wins: `a` when it is NaN, else the comparison is false and `b` is taken. `|` works on vectors
// too.
struct Min {
  template <typename T>
  [[gnu::always_inline]] static T apply(T a, T b) noexcept {
    return ((a < b) | (a != a)) ? a : b;
  }
};
struct Max {
  template <typename T>
  [[gnu::always_inline]] static T apply(T a, T b) noexcept {
    return ((a > b) | (a != a)) ? a : b;
  }
};
struct Or {
  [[gnu::always_inline]] static std::uint8_t apply(std::uint8_t a, std::uint8_t b) noexcept { return (a | b) != 0; }
};
struct And {
  [[gnu::always_inline]] static std::uint8_t apply(std::uint8_t a, std::uint8_t b) noexcept {
    return static_cast<std::uint8_t>((a != 0) & (b != 0));
  }
};

template <typename T, typename Op>
void reduce_plain(std::byte* output, const std::byte* left, const std::byte* right, std::size_t count) {
  Loose<T>* const out = loose<T>(output);
  const Loose<T>* const a = loose<T>(left);
  const Loose<T>* const b = loose<T>(right);
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) out[i].value = Op::template apply<T>(a[i].value, b[i].value);
}

template <typename Op>
void reduce_bool(std::byte* output, const std::byte* left, const std::byte* right, std::size_t count) {
  auto* const out = reinterpret_cast<std::uint8_t*>(output);
  const auto* const a = reinterpret_cast<const std::uint8_t*>(left);
  const auto* const b = reinterpret_cast<const std::uint8_t*>(right);
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) out[i] = Op::apply(a[i], b[i]);
}

/// The two elements of a word, each widened to float32. On little-endian the low half comes first in memory.
struct HalfPair {
  [[gnu::always_inline]] static float low(std::uint32_t word) noexcept { return half_to_float(word & 0xffffu); }
  [[gnu::always_inline]] static float high(std::uint32_t word) noexcept { return half_to_float(word >> 16); }
  [[gnu::always_inline]] static std::uint32_t join(float low, float high) noexcept {
    return float_to_half(low) | float_to_half(high) << 16;
  }
};
struct BfloatPair {
  [[gnu::always_inline]] static float low(std::uint32_t word) noexcept { return float_of(word << 16); }
  [[gnu::always_inline]] static float high(std::uint32_t word) noexcept { return float_of(word & 0xffff0000u); }
  [[gnu::always_inline]] static std::uint32_t join(float low, float high) noexcept {
    return round_to_bfloat_high(low) >> 16 | (round_to_bfloat_high(high) & 0xffff0000u);
  }
};

template <typename Pair, typename Op>
void reduce_pairs(std::byte* output, const std::byte* left, const std::byte* right, std::size_t count) {
  Loose<std::uint32_t>* const out = loose<std::uint32_t>(output);
  const Loose<std::uint32_t>* const a = loose<std::uint32_t>(left);
  const Loose<std::uint32_t>* const b = loose<std::uint32_t>(right);
  const std::size_t pairs = count / 2;
#pragma GCC ivdep
  for (std::size_t i = 0; i < pairs; ++i) {
    const std::uint32_t x = a[i].value;
    const std::uint32_t y = b[i].value;
    out[i].value = Pair::join(Op::apply(Pair::low(x), Pair::low(y)), Op::apply(Pair::high(x), Pair::high(y)));
  }
  if (count % 2 == 0) return;
  const std::uint16_t x = loose<std::uint16_t>(left)[count - 1].value;
  const std::uint16_t y = loose<std::uint16_t>(right)[count - 1].value;
  loose<std::uint16_t>(output)[count - 1].value =
      static_cast<std::uint16_t>(Pair::join(Op::apply(Pair::low(x), Pair::low(y)), 0.0F));
}

template <typename T>
void scale_float(std::byte* output, const std::byte* input, std::size_t count, double factor) {
  Loose<T>* const out = loose<T>(output);
  const Loose<T>* const in = loose<T>(input);
  const T scale = static_cast<T>(factor);
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) out[i].value = in[i].value * scale;
}

template <typename Pair>
void scale_pairs(std::byte* output, const std::byte* input, std::size_t count, double factor) {
  Loose<std::uint32_t>* const out = loose<std::uint32_t>(output);
  const Loose<std::uint32_t>* const in = loose<std::uint32_t>(input);
  const float scale = static_cast<float>(factor);
  const std::size_t pairs = count / 2;
#pragma GCC ivdep
  for (std::size_t i = 0; i < pairs; ++i) {
    const std::uint32_t word = in[i].value;
    out[i].value = Pair::join(Pair::low(word) * scale, Pair::high(word) * scale);
  }
  if (count % 2 == 0) return;
  const std::uint16_t last = loose<std::uint16_t>(input)[count - 1].value;
  loose<std::uint16_t>(output)[count - 1].value = static_cast<std::uint16_t>(Pair::join(Pair::low(last) * scale, 0.0F));
}

/// Toward zero; out of range goes to the nearest end, NaN to 0 (a plain cast would be undefined).
template <typename T>
[[gnu::always_inline]] inline T truncate(double value) noexcept {
  constexpr double kLow = static_cast<double>(std::numeric_limits<T>::min());
  // For int64 the largest value is no double; everything from 2^63 on is out of range.
  constexpr double kEnd = 2.0 * static_cast<double>(T{1} << (std::numeric_limits<T>::digits - 1));
  constexpr double kHigh = sizeof(T) == 8 ? 9223372036854774784.0 : kEnd - 1.0;
  const double number = value == value ? value : 0.0;
  const double above = number < kLow ? kLow : number;
  const double inside = above > kHigh ? kHigh : above;
  return number >= kEnd ? std::numeric_limits<T>::max() : static_cast<T>(inside);
}

template <typename T>
void scale_integer(std::byte* output, const std::byte* input, std::size_t count, double factor) {
  Loose<T>* const out = loose<T>(output);
  const Loose<T>* const in = loose<T>(input);
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) out[i].value = truncate<T>(static_cast<double>(in[i].value) * factor);
}

using ReduceRow = std::array<ReduceKernel, kReduceOpCount>;

template <typename T>
constexpr ReduceRow plain_row() {
  return {nullptr, reduce_plain<T, Sum>, nullptr, reduce_plain<T, Min>, reduce_plain<T, Max>, reduce_plain<T, Product>};
}

template <typename Pair>
constexpr ReduceRow pair_row() {
  return {nullptr,
          reduce_pairs<Pair, Sum>,
          nullptr,
          reduce_pairs<Pair, Min>,
          reduce_pairs<Pair, Max>,
          reduce_pairs<Pair, Product>};
}

constexpr ReduceRow bool_row() {
  return {nullptr, reduce_bool<Or>, nullptr, reduce_bool<And>, reduce_bool<Or>, reduce_bool<And>};
}

/// float16 is given apart: processors with conversion instructions have loops of their own for it.
constexpr KernelTable make_table(const char* isa, const ReduceRow& half_row, ScaleKernel half_scale) {
  return {isa,
          {{plain_row<std::uint8_t>(), plain_row<std::int8_t>(), plain_row<std::int16_t>(), plain_row<std::int32_t>(),
            plain_row<std::int64_t>(), half_row, pair_row<BfloatPair>(), plain_row<float>(), plain_row<double>(),
            bool_row()}},
          {{scale_integer<std::uint8_t>, scale_integer<std::int8_t>, scale_integer<std::int16_t>,
            scale_integer<std::int32_t>, scale_integer<std::int64_t>, half_scale, scale_pairs<BfloatPair>,
            scale_float<float>, scale_float<double>, nullptr}}};
}

}  // namespace
}  // namespace ringtune::device
