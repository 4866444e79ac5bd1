// Small integers as elements of any dtype, exact in all of them, and their reductions in closed form.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "base/dtype.h"

namespace ringtune::testing_support {

/// Exact for |value| <= 128 in every float type here (0 and 1 for kBool).
inline void put_number(std::byte* at, DType dtype, int value) {
  const auto store = [at](auto typed) { std::memcpy(at, &typed, sizeof typed); };
  switch (dtype) {
    case DType::kUint8:
      return store(static_cast<std::uint8_t>(value));
    case DType::kInt8:
      return store(static_cast<std::int8_t>(value));
    case DType::kInt16:
      return store(static_cast<std::int16_t>(value));
    case DType::kInt32:
      return store(static_cast<std::int32_t>(value));
    case DType::kInt64:
      return store(static_cast<std::int64_t>(value));
    case DType::kFloat16:
      return store(static_cast<_Float16>(value));
    case DType::kBfloat16: {
      const float wide = static_cast<float>(value);
      std::memcpy(at, reinterpret_cast<const std::byte*>(&wide) + 2, 2);  // exact: the low half is zero
      return;
    }
    case DType::kFloat32:
      return store(static_cast<float>(value));
    case DType::kFloat64:
      return store(static_cast<double>(value));
    case DType::kBool:
      return store(static_cast<std::uint8_t>(value != 0));
    default:
      return;  // not reduced
  }
}

/// Rank r's element i: for a product 1 or 2, else 1 .. 7 + rank; for kBool 0 or 1.
inline int number_of(int rank, std::size_t i, DType dtype, ReduceOp op) {
  const int at = static_cast<int>(i % 1000);
  if (dtype == DType::kBool) return (at + rank) % 3 == 0 ? 1 : 0;
  return op == ReduceOp::kProduct ? (at + rank) % 2 + 1 : at % 7 + rank + 1;
}

inline int reduced_number(int size, std::size_t i, DType dtype, ReduceOp op) {
  const int at = static_cast<int>(i % 1000);
  if (dtype == DType::kBool) {
    int set = 0;  // ranks with at + rank divisible by 3
    for (int rank = 0; rank < size; ++rank) set += (at + rank) % 3 == 0 ? 1 : 0;
    const bool any = op == ReduceOp::kSum || op == ReduceOp::kMax;
    return any ? set > 0 : set == size;
  }
  if (op == ReduceOp::kSum) return size * (at % 7) + size * (size + 1) / 2;
  if (op == ReduceOp::kMin) return at % 7 + 1;
  if (op == ReduceOp::kMax) return at % 7 + size;
  return 1 << (size + at % 2) / 2;  // one factor of 2 for each rank with at + rank odd
}

using Buffer = std::vector<std::byte>;

inline Buffer input_of(int rank, std::size_t count, DType dtype, ReduceOp op) {
  Buffer buffer(count * size_of(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    put_number(buffer.data() + i * size_of(dtype), dtype, number_of(rank, i, dtype, op));
  }
  return buffer;
}

inline Buffer reduced_of(int size, std::size_t count, DType dtype, ReduceOp op) {
  Buffer buffer(count * size_of(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    put_number(buffer.data() + i * size_of(dtype), dtype, reduced_number(size, i, dtype, op));
  }
  return buffer;
}

/// Bytes that differ by seed and position.
inline Buffer pattern(std::size_t bytes, int seed) {
  Buffer buffer(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    buffer[i] = static_cast<std::byte>((i * 31 + i / 251 + static_cast<std::size_t>(seed) * 17) & 0xff);
  }
  return buffer;
}

}  // namespace ringtune::testing_support
