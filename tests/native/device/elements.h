// Single elements of any dtype as doubles, by the compiler's own conversions: the reference the kernels are held to.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "base/dtype.h"

namespace ringtune::elements {

inline float float_of_half(std::uint16_t bits) {
  _Float16 half;
  std::memcpy(&half, &bits, 2);
  return static_cast<float>(half);
}
inline std::uint16_t half_of_float(float value) {
  const _Float16 half = static_cast<_Float16>(value);
  std::uint16_t bits;
  std::memcpy(&bits, &half, 2);
  return bits;
}
inline float float_of_bfloat(std::uint16_t bits) {
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}
/// Round to nearest even by choosing the nearer neighbour in double arithmetic: independent of the kernel's bit trick.
inline std::uint16_t bfloat_of_float(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const auto below = static_cast<std::uint16_t>(bits >> 16);
  if (std::isnan(value)) return static_cast<std::uint16_t>(below | 0x40);
  if ((bits & 0xffff) == 0 || std::isinf(value)) return below;
  const auto above = static_cast<std::uint16_t>(below + 1);
  const double low = static_cast<double>(value) - static_cast<double>(float_of_bfloat(below));
  double next = static_cast<double>(float_of_bfloat(above));
  if (std::isinf(next)) next = std::copysign(std::ldexp(1.0, 128), next);
  const double high = next - static_cast<double>(value);
  if (std::fabs(low) == std::fabs(high)) return below % 2 == 0 ? below : above;
  return std::fabs(low) < std::fabs(high) ? below : above;
}

template <typename T>
double read_as(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return static_cast<double>(value);
}
template <typename T>
void write_as(std::byte* at, double value) {
  const T narrow = static_cast<T>(value);
  std::memcpy(at, &narrow, sizeof narrow);
}

inline double as_double(DType dtype, const std::byte* at) {
  switch (dtype) {
    case DType::kInt8:
      return read_as<std::int8_t>(at);
    case DType::kInt16:
      return read_as<std::int16_t>(at);
    case DType::kInt32:
      return read_as<std::int32_t>(at);
    case DType::kInt64:
      return read_as<std::int64_t>(at);
    case DType::kFloat16:
      return read_as<_Float16>(at);
    case DType::kBfloat16: {
      std::uint16_t bits;
      std::memcpy(&bits, at, 2);
      return float_of_bfloat(bits);
    }
    case DType::kFloat32:
      return read_as<float>(at);
    case DType::kFloat64:
      return read_as<double>(at);
    default:
      return read_as<std::uint8_t>(at);
  }
}

/// Rounded to nearest even by way of float32 for the 16-bit types; integers are truncated and must be in range.
inline void from_double(DType dtype, std::byte* at, double value) {
  switch (dtype) {
    case DType::kInt8:
      return write_as<std::int8_t>(at, value);
    case DType::kInt16:
      return write_as<std::int16_t>(at, value);
    case DType::kInt32:
      return write_as<std::int32_t>(at, value);
    case DType::kInt64:
      return write_as<std::int64_t>(at, value);
    case DType::kFloat16: {
      const std::uint16_t bits = half_of_float(static_cast<float>(value));
      std::memcpy(at, &bits, 2);
      return;
    }
    case DType::kBfloat16: {
      const std::uint16_t bits = bfloat_of_float(static_cast<float>(value));
      std::memcpy(at, &bits, 2);
      return;
    }
    case DType::kFloat32:
      return write_as<float>(at, value);
    case DType::kFloat64:
      return write_as<double>(at, value);
    default:
      return write_as<std::uint8_t>(at, value);
  }
}

}  // namespace ringtune::elements
