// Allreduces of a batch by way of a buffer on the GPU: many tensors packed into it in one launch - with the factor in
// front of the reduction, and as the dtype as which they travel -, reduced there, and unpacked with what follows.
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

/// Where a packed batch goes, and what reduces it there.
struct PackedWay {
  CudaAddress buffer = 0;
  std::size_t bytes = 0;  // of the buffer, a multiple of kFusionAlignment; larger batches go through it in rounds
  CudaStreamHandle stream = nullptr;
  int ranks = 1;
  std::function<void()> take;  // in front of each round: what was in the buffer is not needed any more
  std::function<void(std::size_t count, DType dtype, ReduceOp op)> reduce;  // the buffer's first elements, in place
};

/// How many bytes a batch needs to go through a buffer in one round.
[[nodiscard]] std::size_t packed_bytes(std::span<const OperationPtr> batch);

/// Of one stream; borrows as DevicePacker. The device's context is current; throws DeviceError, and what `reduce` does.
class PackedReduction {
 public:
  PackedReduction(const CudaDevice& device, DeviceKernels& kernels) : packer_(device, kernels) {}

  /// A batch of which all operations have the same dtypes and reduction. Timed: packing of the first round, unpacking
  /// of the last one, and what lies between. `kept`: these elements of a tensor alone are all that its output consists
  /// of.
  void run(std::span<const OperationPtr> batch, const PackedWay& data_path, const BatchTimes& times,
           std::optional<Elements> kept = std::nullopt);
  [[nodiscard]] DevicePacker& packer() noexcept { return packer_; }

 private:
  void pack(std::span<const OperationPtr> batch, const PackedWay& data_path, const PackedRound& round);
  void unpack(std::span<const OperationPtr> batch, const PackedWay& data_path, const PackedRound& round,
              std::optional<Elements> kept);

  DevicePacker packer_;
  std::vector<ScaledMove> moves_;
};

}  // namespace ringtune
