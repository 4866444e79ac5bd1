// Which ready tensors travel together. A pure function: only the coordinator plans, and sends the result to all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "collective/kind.h"

namespace ringtune {

/// What is reduced for an operation: Average is the sum, and a factor afterwards.
[[nodiscard]] constexpr ReduceOp wire_op(ReduceOp op) noexcept {
  return op == ReduceOp::kAverage ? ReduceOp::kSum : op;
}

/// A plain allreduce, not Adasum: several can share a batch.
[[nodiscard]] constexpr bool fusible(CollectiveKind kind, ReduceOp op) noexcept {
  return kind == CollectiveKind::kAllreduce && op != ReduceOp::kAdasum;
}

/// One tensor that is ready on every rank.
struct ReadyTensor {
  CollectiveKind kind = CollectiveKind::kAllreduce;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::size_t bytes = 0;           // as it travels
  std::string group;               // members of a named group stay in one batch (as far as dtype and op allow)
  std::uint32_t compartment = 0;   // tensors of different process sets never share a batch
  std::optional<DType> wire = {};  // travels as this dtype; empty = as its own
  std::uint8_t place = 0;          // memory of different devices never shares a batch
  std::uint8_t data_path = 0;      // neither do tensors that travel in different ways
};

/// Every tensor starts at a multiple of this in a fusion buffer, so that vector loads are aligned.
inline constexpr std::size_t kFusionAlignment = 64;
[[nodiscard]] constexpr std::size_t fused_size(std::size_t bytes) noexcept {
  return (bytes + kFusionAlignment - 1) / kFusionAlignment * kFusionAlignment;
}

/// Batches as lists of indices into `ready`. Order of first members is kept; only allreduces of one dtype, in
/// memory and on the wire, and one reduction (Average counts as Sum: it scales at copy-out) share a batch; a batch
/// holds at most `fusion_bytes` of padded tensors unless its first member (or group) alone is larger. 0: every tensor
/// (or group) on its own.
[[nodiscard]] std::vector<std::vector<std::uint32_t>> plan(std::span<const ReadyTensor> ready,
                                                           std::size_t fusion_bytes);

}  // namespace ringtune
