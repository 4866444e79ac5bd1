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
};
inline constexpr int kDTypeCount = 10;

/// Values 0..5 are Horovod's `Average, Sum, Adasum, Min, Max, Product`.
enum class ReduceOp : std::uint8_t { kAverage = 0, kSum = 1, kAdasum = 2, kMin = 3, kMax = 4, kProduct = 5 };

[[nodiscard]] std::size_t size_of(DType dtype);       // bytes of one element
[[nodiscard]] std::string_view name_of(DType dtype);  // "float32"
[[nodiscard]] std::string_view name_of(ReduceOp op);  // "Average"
[[nodiscard]] bool is_floating(DType dtype) noexcept;
/// Wire value -> enum; throws Protocol when out of range.
[[nodiscard]] DType dtype_from_wire(std::uint8_t value);
[[nodiscard]] ReduceOp reduce_op_from_wire(std::uint8_t value);

}  // namespace ringtune
