#include "runtime/gpu/kernel_cache.h"

#include <optional>

#include "base/error.h"

namespace ringtune {

std::string KernelCache::refusal() const {
  return compile_ ? std::string() : "there are no kernels for its GPUs on this rank";
}

DeviceKernels& KernelCache::on(const CudaDevice& device) {
  const auto found = kernels_.find(&device);
  if (found != kernels_.end()) return *found->second;
  if (!compile_) throw DeviceError(refusal());
  const int capability = device.driver().compute_capability(device.ordinal());
  return *kernels_.emplace(&device, std::make_unique<DeviceKernels>(device, compile_(capability))).first->second;
}

void KernelCache::close() noexcept {
  for (auto& [device, kernels] : kernels_) {
    std::optional<CudaDevice::Current> current;
    try {
      current.emplace(*device);
    } catch (const std::exception&) {  // the driver has failed; the results of the calls below are ignored
    }
    kernels.reset();
  }
  kernels_.clear();
}

}  // namespace ringtune
