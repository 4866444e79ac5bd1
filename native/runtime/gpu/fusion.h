// Batches of several allreduces by NCCL: ringtune's kernels pack them into a buffer on the GPU, one call of NCCL
// reduces it, and kernels unpack it. That needs the kernels and the memory on all members of the process set, which
// tell one another in front of the first such batch, and again when a buffer is to grow. Without them a batch is a
// group with one call for each tensor. What NCCL can only carry packed (DataPath::kNcclPacked: the kernels cast it or
// scale its integers) is packed even alone, and takes the next data path without kernels. So does Adasum, whose batch
// is one tensor that has the buffer to itself.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "device/cuda.h"
#include "device/cuda_module.h"
#include "runtime/gpu/adasum.h"
#include "runtime/gpu/kernel_cache.h"
#include "runtime/gpu/packed_reduction.h"
#include "runtime/operation.h"

namespace ringtune {

struct BatchContext;
class DeviceLane;

/// Driving thread.
class DeviceFusion {
 public:
  /// Bounds of a buffer, which grows with the batches. Larger batches go through it in rounds, but for Adasum's.
  static constexpr std::size_t kLeastBytes = 1 << 20;
  static constexpr std::size_t kMostBytes = 128 << 20;

  /// Borrows them.
  explicit DeviceFusion(KernelCache& kernels) : kernels_(kernels) {}
  DeviceFusion(const DeviceFusion&) = delete;
  DeviceFusion& operator=(const DeviceFusion&) = delete;

  /// Whether the batch, which goes into the device's transfer stream of that number, is to be packed; the answer is the
  /// same on all members. May block for seconds the first time. Throws DataPathRefused, on all members, where a batch
  /// that must be packed cannot be; PeerLost, Timeout.
  [[nodiscard]] bool prepare(std::span<const OperationPtr> batch, const BatchContext& context, const CudaDevice& device,
                             std::size_t stream);
  /// Puts one that is to be packed into that stream. `reduce`: the buffer's first elements, in place. The device's
  /// context is current. Throws DeviceError, and what `reduce` does.
  void launch(std::span<const OperationPtr> batch, const BatchContext& context, std::size_t stream,
              const BatchTimes& times,
              const std::function<void(std::byte* data, std::size_t count, DType dtype, ReduceOp op)>& reduce);
  /// The same for a batch of Adasum.
  void launch_adasum(const Operation& operation, const BatchContext& context, std::size_t stream,
                     const BatchTimes& times, const AdasumCalls& calls);
  void removed(std::uint32_t process_set);
  /// Call when NCCL has finished, and before the lanes go. Blocks until its work in streams is done. Idempotent.
  void close() noexcept;

 private:
  /// A stream of a GPU; its batches follow one another and share a buffer.
  using Channel = std::pair<const CudaDevice*, std::size_t>;
  struct Buffer {
    Buffer(const CudaDevice& device, DeviceKernels& kernels) : memory(device), reduction(device, kernels) {}
    DeviceMemory memory;
    PackedReduction reduction;
    CudaStreamHandle stream = nullptr;  // null until the first batch
  };
  /// Those who have to agree: the members of a set, on one of their GPUs, for one of its streams.
  struct AgreementKey {
    std::uint32_t process_set;
    std::uint8_t place;
    std::size_t stream;
    friend auto operator<=>(const AgreementKey&, const AgreementKey&) = default;
  };
  struct Agreement {
    std::size_t bytes = 0;  // all members have as much
    std::string refusal;    // by whom, and why
  };

  std::string reserve(const Channel& channel, std::size_t bytes);
  Buffer& buffer_for(DeviceLane& lane, std::size_t stream);
  void agree(const AgreementKey& key, Agreement& agreement, const BatchContext& context, std::string own_refusal,
             std::size_t bytes);

  KernelCache& kernels_;
  std::map<AgreementKey, Agreement> agreed_;
  std::map<Channel, Buffer> buffers_;
};

}  // namespace ringtune
