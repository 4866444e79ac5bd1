// Casts between the floating dtypes, included like kernel_loops.h after the target pragma. An `Element` says how L
// elements of a dtype become a vector of float or double lanes in their natural order, and back.
#pragma once

#include <type_traits>

#include "device/float16.h"
#include "device/kernel_table.h"
#include "device/vectors.h"

namespace ringtune::device {
namespace {

template <typename T>
struct PlainElement {
  using Lane = T;
  static constexpr std::size_t kBytes = sizeof(T);
  template <std::size_t L>
  [[gnu::always_inline]] static Vector<T, L * sizeof(T)> load(const std::byte* at) noexcept {
    return load_loose<Vector<T, L * sizeof(T)>>(at);
  }
  template <std::size_t L>
  [[gnu::always_inline]] static void store(std::byte* at, Vector<T, L * sizeof(T)> value) noexcept {
    store_loose(at, value);
  }
};

/// 16-bit elements without instructions of their own.
template <std::size_t L>
[[gnu::always_inline]] inline Vector<std::uint32_t, 4 * L> load_words(const std::byte* at) noexcept {
  return __builtin_convertvector(load_loose<Vector<std::uint16_t, 2 * L>>(at), Vector<std::uint32_t, 4 * L>);
}
template <std::size_t L>
[[gnu::always_inline]] inline void store_words(std::byte* at, Vector<std::uint32_t, 4 * L> words) noexcept {
  store_loose(at, __builtin_convertvector(words, Vector<std::uint16_t, 2 * L>));
}

struct HalfElement {
  using Lane = float;
  static constexpr std::size_t kBytes = 2;
  template <std::size_t L>
  [[gnu::always_inline]] static Vector<float, 4 * L> load(const std::byte* at) noexcept {
    return Bits16<4 * L>::half_to_float(load_words<L>(at));
  }
  template <std::size_t L>
  [[gnu::always_inline]] static void store(std::byte* at, Vector<float, 4 * L> value) noexcept {
    store_words<L>(at, Bits16<4 * L>::float_to_half(value));
  }
};

struct BfloatElement {
  using Lane = float;
  static constexpr std::size_t kBytes = 2;
  template <std::size_t L>
  [[gnu::always_inline]] static Vector<float, 4 * L> load(const std::byte* at) noexcept {
    using F32 = Vector<float, 4 * L>;
    return __builtin_bit_cast(F32, load_words<L>(at) << 16);
  }
  template <std::size_t L>
  [[gnu::always_inline]] static void store(std::byte* at, Vector<float, 4 * L> value) noexcept {
    store_words<L>(at, Bits16<4 * L>::round_to_bfloat_high(value) >> 16);
  }
};

/// One vector: in float64 when either side is, else in float32.
template <typename In, typename Out, std::size_t L, typename Wide>
[[gnu::always_inline]] inline void convert_at(std::byte* out, const std::byte* in, Wide factor) noexcept {
  using WideVector = Vector<Wide, L * sizeof(Wide)>;
  using OutVector = Vector<typename Out::Lane, L * sizeof(typename Out::Lane)>;
  const WideVector wide = __builtin_convertvector(In::template load<L>(in), WideVector) * factor;
  Out::template store<L>(out, __builtin_convertvector(wide, OutVector));
}

template <typename In, typename Out, std::size_t Bytes>
void convert(std::byte* out, const std::byte* in, std::size_t count, double factor) {
  constexpr bool kDouble = std::is_same_v<typename In::Lane, double> || std::is_same_v<typename Out::Lane, double>;
  using Wide = std::conditional_t<kDouble, double, float>;
  constexpr std::size_t kLanes = Bytes / sizeof(Wide);
  constexpr std::size_t kUnroll = 4;
  const Wide scale = static_cast<Wide>(factor);
  std::size_t i = 0;
  for (; count - i >= kLanes * kUnroll; i += kLanes * kUnroll) {
    for (std::size_t u = 0; u < kUnroll; ++u) {
      const std::size_t at = i + u * kLanes;
      convert_at<In, Out, kLanes>(out + at * Out::kBytes, in + at * In::kBytes, scale);
    }
  }
  for (; count - i >= kLanes; i += kLanes) {
    convert_at<In, Out, kLanes>(out + i * Out::kBytes, in + i * In::kBytes, scale);
  }
  if (i == count) return;
  std::byte from[kLanes * In::kBytes]{};
  std::byte to[kLanes * Out::kBytes];
  __builtin_memcpy(from, in + i * In::kBytes, (count - i) * In::kBytes);
  convert_at<In, Out, kLanes>(to, from, scale);
  __builtin_memcpy(out + i * Out::kBytes, to, (count - i) * Out::kBytes);
}

template <typename In, std::size_t Bytes, typename Half>
constexpr std::array<ConvertKernel, kFloatingCount> convert_row() {
  return {convert<In, Half, Bytes>, convert<In, BfloatElement, Bytes>, convert<In, PlainElement<float>, Bytes>,
          convert<In, PlainElement<double>, Bytes>};
}

template <std::size_t Bytes, typename Half>
constexpr ConvertTable make_converts() {
  return {{convert_row<Half, Bytes, Half>(), convert_row<BfloatElement, Bytes, Half>(),
           convert_row<PlainElement<float>, Bytes, Half>(), convert_row<PlainElement<double>, Bytes, Half>()}};
}

}  // namespace
}  // namespace ringtune::device
