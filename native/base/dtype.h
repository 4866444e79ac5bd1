// Element types and reductions. The numeric values travel on the wire and over the binding: never renumber.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ringtune {

enum class DType : std::uint8_t {
  kUint8 = 0,
  kInt8 = 1,
  kInt16 = 2,
  kInt32 = 3,
  kInt64 = 4,
  kFloat16 = 5,
  kBfloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBool = 9,
  // From here on they are moved only: gathered, broadcast, exchanged.
  kUint16 = 10,
  kUint32 = 11,
  kUint64 = 12,
  kComplex64 = 13,
  kComplex128 = 14,
};
inline constexpr int kReducedDTypeCount = 10;
inline constexpr int kDTypeCount = 15;

/// Values 0..5 are Horovod's `Average, Sum, Adasum, Min, Max, Product`.
enum class ReduceOp : std::uint8_t { kAverage = 0, kSum = 1, kAdasum = 2, kMin = 3, kMax = 4, kProduct = 5 };

[[nodiscard]] std::size_t size_of(DType dtype);       // bytes of one element
[[nodiscard]] std::string_view name_of(DType dtype);  // "float32"
[[nodiscard]] std::string_view name_of(ReduceOp op);  // "Average"
[[nodiscard]] bool is_floating(DType dtype) noexcept;
/// Whether its elements can be reduced, and not only moved.
[[nodiscard]] constexpr bool is_reduced(DType dtype) noexcept { return static_cast<int>(dtype) < kReducedDTypeCount; }
/// Wire value -> enum; throws Protocol when out of range.
[[nodiscard]] DType dtype_from_wire(std::uint8_t value);
[[nodiscard]] ReduceOp reduce_op_from_wire(std::uint8_t value);

}  // namespace ringtune
