// The fake driver in a test: opened, directed, and used as a program with kernels uses a driver.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/cuda.h"
#include "fake_cuda/fake_cuda.h"

namespace ringtune::testing_support {

/// The fake as a fresh process has it. Devices, streams and all that a test makes must be gone before this is.
class FakeGpu {
 public:
  FakeGpu() {
    function<void()>("fake_cuda_reset")();
    function<int(unsigned)>("cuInit")(0);
  }
  FakeGpu(const FakeGpu&) = delete;
  FakeGpu& operator=(const FakeGpu&) = delete;

  static std::string path() { return RINGTUNE_FAKE_CUDA; }
  static const CudaDriver& driver() { return CudaDriver::open(path()); }

  /// A function of the library by its name.
  template <typename Signature>
  static Signature* function(const char* name) {
    static void* const library = ::dlopen(RINGTUNE_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
    void* const found = library == nullptr ? nullptr : ::dlsym(library, name);
    if (found == nullptr) throw std::runtime_error(std::string("the fake driver lacks ") + name);
    return reinterpret_cast<Signature*>(found);
  }

  static void set_version(int version) { function<void(int)>("fake_cuda_set_version")(version); }
  static void set_devices(int count) { function<void(int)>("fake_cuda_set_devices")(count); }
  static void set_clock_drift(int ppb) { function<void(int)>("fake_cuda_set_clock_drift")(ppb); }
  static void set_eager() { function<void(int)>("fake_cuda_set_eager")(1); }
  static void fail(const char* call, int index, int code) {
    function<void(const char*, int, int)>("fake_cuda_fail")(call, index, code);
  }
  static int calls(const char* call) { return function<int(const char*)>("fake_cuda_calls")(call); }
  static void hold(CudaStreamHandle stream) { function<void(void*)>("fake_cuda_hold")(stream); }
  static void release(CudaStreamHandle stream) { function<void(void*)>("fake_cuda_release")(stream); }
  static void capture(CudaStreamHandle stream, bool on) {
    function<void(void*, int)>("fake_cuda_capture")(stream, on ? 1 : 0);
  }
  static int alive() { return function<int()>("fake_cuda_alive")(); }

  /// Memory of the current context.
  static CudaAddress allocate(std::size_t bytes) {
    CudaAddress address = 0;
    EXPECT_EQ(function<int(CudaAddress*, std::size_t)>("cuMemAlloc_v2")(&address, bytes), 0);
    return address;
  }
  static void free(CudaAddress address) { function<int(CudaAddress)>("cuMemFree_v2")(address); }
  static void put(CudaAddress to, const void* from, std::size_t bytes) {
    EXPECT_EQ(function<int(CudaAddress, const void*, std::size_t)>("cuMemcpyHtoD_v2")(to, from, bytes), 0);
  }
  static void get(void* to, CudaAddress from, std::size_t bytes) {
    EXPECT_EQ(function<int(void*, CudaAddress, std::size_t)>("cuMemcpyDtoH_v2")(to, from, bytes), 0);
  }
  static void synchronize(CudaStreamHandle stream) {
    EXPECT_EQ(function<int(void*)>("cuStreamSynchronize")(stream), 0);
  }
};

/// Device memory of 32-bit elements, as a tensor of a program has it. The program's kernels are memsets.
template <typename T>
class DeviceArray {
 public:
  DeviceArray(const CudaDevice& device, const std::vector<T>& values) : device_(device), count_(values.size()) {
    static_assert(sizeof(T) == 4);
    const CudaDevice::Current current(device);
    address_ = FakeGpu::allocate(4 * count_ + 4);
    FakeGpu::put(address_, values.data(), 4 * count_);
  }
  ~DeviceArray() { free(); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  void free() {
    if (address_ != 0) FakeGpu::free(address_);
    address_ = 0;
  }

  [[nodiscard]] std::byte* data() const noexcept { return reinterpret_cast<std::byte*>(address_); }
  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  /// A kernel that writes the same value everywhere.
  void fill(CudaStreamHandle stream, T value) {
    const CudaDevice::Current current(device_);
    EXPECT_EQ(FakeGpu::function<int(CudaAddress, unsigned, std::size_t, void*)>("cuMemsetD32Async")(
                  address_, std::bit_cast<unsigned>(value), count_, stream),
              0);
  }
  /// What a program sees that waits for its stream, and looks then.
  [[nodiscard]] std::vector<T> values(CudaStreamHandle stream) const {
    const CudaDevice::Current current(device_);
    FakeGpu::synchronize(stream);
    std::vector<T> values(count_);
    FakeGpu::get(values.data(), address_, 4 * count_);
    return values;
  }

 private:
  const CudaDevice& device_;
  std::size_t count_;
  CudaAddress address_ = 0;
};

}  // namespace ringtune::testing_support
