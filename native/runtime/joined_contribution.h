// What a rank that has joined contributes to the reductions of the others.
#pragma once

#include <deque>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "runtime/operation.h"

namespace ringtune {

/// The neutral element of a reduction in `count` elements: 0 for Sum, Average and Adasum, 1 for Product, the largest
/// and smallest number (infinity for floating dtypes) for Min and Max.
void fill_neutral(std::span<std::byte> memory, DType dtype, ReduceOp op);

/// Operations on memory of their own for requests that other ranks have made. Results are thrown away.
class JoinedContribution {
 public:
  JoinedContribution(std::span<const SharedRequest> requests, std::int64_t now_ns);
  [[nodiscard]] std::span<const OperationPtr> operations() const noexcept { return pointers_; }

 private:
  std::deque<Operation> operations_;
  std::vector<Bytes> memory_;
  std::vector<OperationPtr> pointers_;
};

}  // namespace ringtune
