// Memory of a GPU and kernels in it. Objects borrow their device, which must outlive them; none is copied. Every
// function but destructors needs the device's context to be current, and throws DeviceError. One thread at a time.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "device/cuda.h"

namespace ringtune {

/// Device memory that is kept. Holds nothing at first.
class DeviceMemory {
 public:
  explicit DeviceMemory(const CudaDevice& device) : device_(device) {}
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  /// At least that many bytes, aligned to 256. When it grows, its content is lost, and what it was stays until the end:
  /// a stream may still use it, and to give it back would wait for the whole device.
  CudaAddress reserve(std::size_t bytes);
  [[nodiscard]] CudaAddress address() const noexcept { return kept_.empty() ? 0 : kept_.back(); }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  const CudaDevice& device_;
  std::vector<CudaAddress> kept_;  // the last one is in use
  std::size_t bytes_ = 0;
};

/// How many blocks a kernel runs in, and of how many threads.
struct LaunchShape {
  unsigned blocks;
  unsigned threads;
};

/// Kernels of a cubin, which the driver copies.
class CudaModule {
 public:
  CudaModule(const CudaDevice& device, std::span<const std::byte> cubin);
  ~CudaModule();
  CudaModule(const CudaModule&) = delete;
  CudaModule& operator=(const CudaModule&) = delete;

  /// Puts a kernel into the stream, with arguments of exactly the types that it takes.
  template <typename... Arguments>
  void launch(const std::string& kernel, LaunchShape shape, CudaStreamHandle stream, Arguments... arguments) {
    void* pointers[] = {&arguments...};
    launch(function(kernel), shape, stream, pointers);
  }

 private:
  CudaFunctionHandle function(const std::string& name);
  void launch(CudaFunctionHandle function, LaunchShape shape, CudaStreamHandle stream, void** arguments) const;

  const CudaDevice& device_;
  CudaModuleHandle handle_ = nullptr;
  std::map<std::string, CudaFunctionHandle> functions_;
};

}  // namespace ringtune
