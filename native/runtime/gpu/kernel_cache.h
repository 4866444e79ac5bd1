// ringtune's kernels on the GPUs that a process uses, loaded when they are needed first.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device/cuda.h"
#include "device/device_kernels.h"

namespace ringtune {

/// The kernels of core/gpu/cuda as a cubin for GPUs of a compute capability (90 of 9.0). May block for seconds. Throws
/// DeviceError: what is missing, and what to do.
using KernelsForGpu = std::function<std::vector<std::byte>(int capability)>;

/// Driving thread, unless a method says otherwise.
class KernelCache {
 public:
  /// An empty function means that this process has no kernels.
  explicit KernelCache(KernelsForGpu compile) : compile_(std::move(compile)) {}
  ~KernelCache() { close(); }
  KernelCache(const KernelCache&) = delete;
  KernelCache& operator=(const KernelCache&) = delete;

  /// Any thread. Why this rank has no kernels, as far as that is known without compiling; empty where it may have them.
  [[nodiscard]] std::string refusal() const;
  /// Of a lane's device, whose context is current. Blocks the first time. Throws DeviceError.
  [[nodiscard]] DeviceKernels& on(const CudaDevice& device);
  /// Call when no stream uses the kernels any more, and before the lanes go. Idempotent.
  void close() noexcept;

 private:
  KernelsForGpu compile_;
  std::map<const CudaDevice*, std::unique_ptr<DeviceKernels>> kernels_;
};

}  // namespace ringtune
