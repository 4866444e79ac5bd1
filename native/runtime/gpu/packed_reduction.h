// Allreduces of a batch in a buffer on the GPU. One launch packs many tensors into it, with the factor before the
// reduction and a cast to the dtype that travels. The buffer is reduced, and one launch unpacks it with the second
// factor and the cast back.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "runtime/gpu/batch_times.h"
#include "runtime/gpu/pack.h"
#include "runtime/operation.h"

namespace ringtune {

/// Elements of a tensor.
struct Elements {
  std::size_t begin;
  std::size_t end;
};

/// The buffer of a packed batch, and the functions that reduce it there.
struct PackedTarget {
  CudaAddress buffer = 0;
  std::size_t bytes = 0;  // of the buffer, a multiple of kFusionAlignment; larger batches go through it in rounds
  CudaStreamHandle stream = nullptr;
  int ranks = 1;
  std::function<void()> take;  // called before each round: the buffer's old contents are not needed any more
  std::function<void(std::size_t count, DType dtype, ReduceOp op)> reduce;  // the buffer's first elements, in place
};

/// How many bytes a batch needs to go through a buffer in one round.
[[nodiscard]] std::size_t packed_bytes(std::span<const OperationPtr> batch);

/// Works in one stream; borrows as DevicePacker. The device's context is current; throws DeviceError, and what `reduce`
/// does.
class PackedReduction {
 public:
  PackedReduction(const CudaDevice& device, DeviceKernels& kernels) : packer_(device, kernels) {}

  /// All operations of the batch have the same dtypes and reduction. Three intervals are timed: packing of the first
  /// round, unpacking of the last one, and the time between. `kept`: the elements of a single tensor that its output
  /// consists of.
  void run(std::span<const OperationPtr> batch, const PackedTarget& target, const BatchTimes& times,
           std::optional<Elements> kept = std::nullopt);
  [[nodiscard]] DevicePacker& packer() noexcept { return packer_; }

 private:
  void pack(std::span<const OperationPtr> batch, const PackedTarget& target, const PackedRound& round);
  void unpack(std::span<const OperationPtr> batch, const PackedTarget& target, const PackedRound& round,
              std::optional<Elements> kept);

  DevicePacker packer_;
  std::vector<ScaledMove> moves_;
};

}  // namespace ringtune
