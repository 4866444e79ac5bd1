#include "device/adasum_kernels.h"

#include <array>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "device/float16.h"

namespace ringtune {
namespace {

struct Float32 {
  using Wide = float;
  static constexpr std::size_t kBytes = 4;
  static Wide load(const std::byte* at) noexcept {
    float value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  static void store(std::byte* at, Wide value) noexcept { std::memcpy(at, &value, sizeof value); }
};

struct Float64 {
  using Wide = double;
  static constexpr std::size_t kBytes = 8;
  static Wide load(const std::byte* at) noexcept {
    double value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  static void store(std::byte* at, Wide value) noexcept { std::memcpy(at, &value, sizeof value); }
};

std::uint32_t load16(const std::byte* at) noexcept {
  std::uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return bits;
}

void store16(std::byte* at, std::uint32_t bits) noexcept {
  const auto low = static_cast<std::uint16_t>(bits);
  std::memcpy(at, &low, sizeof low);
}

using One = device::Bits16<4>;  // vectors of one lane

struct Float16 {
  using Wide = float;
  static constexpr std::size_t kBytes = 2;
  static Wide load(const std::byte* at) noexcept { return One::half_to_float(One::U32{} + load16(at))[0]; }
  static void store(std::byte* at, Wide value) noexcept { store16(at, One::float_to_half(One::F32{} + value)[0]); }
};

struct Bfloat16 {
  using Wide = float;
  static constexpr std::size_t kBytes = 2;
  static Wide load(const std::byte* at) noexcept { return __builtin_bit_cast(float, load16(at) << 16); }
  static void store(std::byte* at, Wide value) noexcept {
    store16(at, One::round_to_bfloat_high(One::F32{} + value)[0] >> 16);
  }
};

// So many sums run side by side, so that the compiler may use vectors without changing any order.
constexpr std::size_t kLanes = 8;
using Lanes = std::array<double, kLanes>;

double total(const Lanes& lanes) noexcept {
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

template <typename Format>
DotProducts dots(const std::byte* a, const std::byte* b, std::size_t count) noexcept {
  Lanes ab{};
  Lanes aa{};
  Lanes bb{};
  const auto add = [&](std::size_t lane, std::size_t i) {
    const double x = Format::load(a + i * Format::kBytes);
    const double y = Format::load(b + i * Format::kBytes);
    ab[lane] += x * y;
    aa[lane] += x * x;
    bb[lane] += y * y;
  };
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) add(lane, i + lane);
  }
  for (std::size_t lane = 0; i < count; ++i, ++lane) add(lane, i);
  return {total(ab), total(aa), total(bb)};
}

template <typename Format>
void combine(std::byte* out, const ScaledTerms& terms, std::size_t count) noexcept {
  using Wide = typename Format::Wide;
  const auto fa = static_cast<Wide>(terms.a_factor);
  const auto fb = static_cast<Wide>(terms.b_factor);
  for (std::size_t at = 0; at < count * Format::kBytes; at += Format::kBytes) {
    Format::store(out + at, fa * Format::load(terms.a + at) + fb * Format::load(terms.b + at));
  }
}

/// Calls `act` with the format of a floating dtype.
template <typename Act>
auto with_format(DType dtype, Act act) {
  switch (dtype) {
    case DType::kFloat16:
      return act(Float16{});
    case DType::kBfloat16:
      return act(Bfloat16{});
    case DType::kFloat32:
      return act(Float32{});
    default:
      RINGTUNE_CHECK(dtype == DType::kFloat64, "Adasum of ", name_of(dtype));
      return act(Float64{});
  }
}

}  // namespace

DotProducts dot_products(const std::byte* a, const std::byte* b, std::size_t count, DType dtype) {
  return with_format(dtype, [&](auto format) { return dots<decltype(format)>(a, b, count); });
}

void scaled_sum(std::byte* out, const ScaledTerms& terms, std::size_t count, DType dtype) {
  with_format(dtype, [&](auto format) { combine<decltype(format)>(out, terms, count); });
}

}  // namespace ringtune
