#include "device/cuda_module.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"

namespace ringtune {

DeviceMemory::~DeviceMemory() {
  for (const CudaAddress memory : kept_) (void)device_.api().memory_free(memory);
}

CudaAddress DeviceMemory::reserve(std::size_t bytes) {
  if (bytes <= bytes_) return address();
  constexpr std::size_t kSmallest = 64 << 10;
  const std::size_t size =
      std::bit_ceil(std::max(bytes, kSmallest));  // so that all that is kept is less than twice that
  CudaAddress memory = 0;
  device_.check(device_.api().memory_alloc(&memory, size), "cuMemAlloc");
  kept_.push_back(memory);
  bytes_ = size;
  return memory;
}

CudaModule::CudaModule(const CudaDevice& device, std::span<const std::byte> cubin) : device_(device) {
  constexpr char kElf[] = {'\x7f', 'E', 'L', 'F'};
  if (cubin.size() < 64 || std::memcmp(cubin.data(), kElf, sizeof kElf) != 0) {
    throw DeviceError("what was given as the kernels of GPU " + std::to_string(device.ordinal()) + " is no cubin (" +
                      std::to_string(cubin.size()) + " bytes, expected those of an ELF file): compile them anew");
  }
  device.check(device.api().module_load(&handle_, cubin.data()), "cuModuleLoadData");
}

CudaModule::~CudaModule() { (void)device_.api().module_unload(handle_); }

CudaFunctionHandle CudaModule::function(const std::string& name) {
  const auto [place, is_new] = functions_.try_emplace(name, nullptr);
  if (is_new) {
    const int code = device_.api().module_function(&place->second, handle_, name.c_str());
    if (code != kCudaSuccess) functions_.erase(place);
    device_.check(code, ("cuModuleGetFunction(" + name + ")").c_str());
  }
  return place->second;
}

void CudaModule::launch(CudaFunctionHandle function, LaunchShape shape, CudaStreamHandle stream,
                        void** arguments) const {
  device_.check(device_.api().launch(function, shape.blocks, 1, 1, shape.threads, 1, 1, 0, stream, arguments, nullptr),
                "cuLaunchKernel");
}

}  // namespace ringtune
