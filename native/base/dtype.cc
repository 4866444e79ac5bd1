#include "base/dtype.h"

#include <array>
#include <string>

#include "base/check.h"
#include "base/error.h"

namespace ringtune {
namespace {

struct DTypeRow {
  std::string_view name;
  std::size_t bytes;
  bool floating;
};

constexpr std::array<DTypeRow, kDTypeCount> kDTypes{{
    {"uint8", 1, false},
    {"int8", 1, false},
    {"int16", 2, false},
    {"int32", 4, false},
    {"int64", 8, false},
    {"float16", 2, true},
    {"bfloat16", 2, true},
    {"float32", 4, true},
    {"float64", 8, true},
    {"bool", 1, false},
    {"uint16", 2, false},
    {"uint32", 4, false},
    {"uint64", 8, false},
    {"complex64", 8, false},
    {"complex128", 16, false},
}};

constexpr std::array<std::string_view, 6> kOps{"Average", "Sum", "Adasum", "Min", "Max", "Product"};

const DTypeRow& row_of(DType dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  RINGTUNE_CHECK_LT(index, kDTypes.size(), "no such dtype");
  return kDTypes[index];
}

}  // namespace

std::size_t size_of(DType dtype) { return row_of(dtype).bytes; }
std::string_view name_of(DType dtype) { return row_of(dtype).name; }

std::string_view name_of(ReduceOp op) {
  const auto index = static_cast<std::size_t>(op);
  RINGTUNE_CHECK_LT(index, kOps.size(), "no such reduction");
  return kOps[index];
}

bool is_floating(DType dtype) noexcept {
  const auto index = static_cast<std::size_t>(dtype);
  return index < kDTypes.size() && kDTypes[index].floating;
}

DType dtype_from_wire(std::uint8_t value) {
  if (value >= kDTypes.size()) {
    throw Protocol("a peer sent dtype number " + std::to_string(value) + ", known are 0.." +
                   std::to_string(kDTypeCount - 1));
  }
  return static_cast<DType>(value);
}

ReduceOp reduce_op_from_wire(std::uint8_t value) {
  if (value >= kOps.size())
    throw Protocol("a peer sent reduction number " + std::to_string(value) + ", known are 0..5");
  return static_cast<ReduceOp>(value);
}

}  // namespace ringtune
