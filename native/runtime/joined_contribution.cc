#include "runtime/joined_contribution.h"

#include <cstring>
#include <limits>

#include "base/check.h"

namespace ringtune {
namespace {

struct Pattern {
  std::byte bytes[16];
};

template <typename T>
Pattern pattern_of(T value) noexcept {
  Pattern pattern{};
  std::memcpy(pattern.bytes, &value, sizeof value);
  return pattern;
}

template <typename T>
Pattern integer_of(ReduceOp op) noexcept {
  using Limits = std::numeric_limits<T>;
  if (op == ReduceOp::kMin) return pattern_of(Limits::max());
  if (op == ReduceOp::kMax) return pattern_of(Limits::min());
  return pattern_of(static_cast<T>(op == ReduceOp::kProduct ? 1 : 0));
}

template <typename T>
Pattern floating_of(ReduceOp op) noexcept {
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  if (op == ReduceOp::kMin) return pattern_of(kInfinity);
  if (op == ReduceOp::kMax) return pattern_of(-kInfinity);
  return pattern_of(static_cast<T>(op == ReduceOp::kProduct ? 1 : 0));
}

/// Bits of infinity and of one; both formats have the sign on top.
Pattern half_of(ReduceOp op, std::uint16_t infinity, std::uint16_t one) noexcept {
  if (op == ReduceOp::kMin) return pattern_of(infinity);
  if (op == ReduceOp::kMax) return pattern_of(static_cast<std::uint16_t>(infinity | 0x8000U));
  return pattern_of(static_cast<std::uint16_t>(op == ReduceOp::kProduct ? one : 0));
}

Pattern neutral_of(DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::kUint8:
      return integer_of<std::uint8_t>(op);
    case DType::kInt8:
      return integer_of<std::int8_t>(op);
    case DType::kInt16:
      return integer_of<std::int16_t>(op);
    case DType::kInt32:
      return integer_of<std::int32_t>(op);
    case DType::kInt64:
      return integer_of<std::int64_t>(op);
    case DType::kFloat16:
      return half_of(op, 0x7c00, 0x3c00);
    case DType::kBfloat16:
      return half_of(op, 0x7f80, 0x3f80);
    case DType::kFloat32:
      return floating_of<float>(op);
    case DType::kFloat64:
      return floating_of<double>(op);
    case DType::kBool:  // and for Min and Product, or for the others
      return integer_of<std::uint8_t>(op == ReduceOp::kMin || op == ReduceOp::kProduct ? ReduceOp::kProduct
                                                                                       : ReduceOp::kSum);
    case DType::kUint16:
    case DType::kUint32:
    case DType::kUint64:
    case DType::kComplex64:
    case DType::kComplex128:
      return {};  // moved, not reduced: zeros
  }
  RINGTUNE_CHECK(false, "no such dtype");
  return {};
}

}  // namespace

void fill_neutral(std::span<std::byte> memory, DType dtype, ReduceOp op) {
  const Pattern pattern = neutral_of(dtype, op);
  const std::size_t size = size_of(dtype);
  for (std::size_t at = 0; at + size <= memory.size(); at += size) std::memcpy(memory.data() + at, pattern.bytes, size);
}

JoinedContribution::JoinedContribution(std::span<const SharedRequest> requests, std::int64_t now_ns) {
  for (const SharedRequest& shared : requests) {
    Request request = *shared;
    request.prescale = 1.0;  // a scaled neutral element need not be one
    Operation& operation = operations_.emplace_back();
    operation.prepared = std::make_shared<const Prepared>(std::move(request));
    Bytes& memory = memory_.emplace_back(operation.prepared->bytes);
    fill_neutral(memory, shared->dtype, shared->op);
    operation.input = memory.data();
    operation.output = memory.data();
    operation.submitted_ns = operation.agreed_ns = now_ns;
    pointers_.push_back(&operation);
  }
}

}  // namespace ringtune
