// The fake NCCL in a test, over the fake driver.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "device/fake_gpu.h"
#include "device/nccl_library.h"
#include "fake_nccl/fake_nccl.h"

namespace ringtune::testing_support {

/// The fake as a fresh process has it, and a driver with `gpus` devices; nobody has misused it when it goes, unless
/// that was expected. What is made with it must be gone before.
class FakeNccl {
 public:
  explicit FakeNccl(int gpus) {
    FakeGpu::set_devices(gpus);
    function<void()>("fake_nccl_reset")();
  }
  ~FakeNccl() {
    EXPECT_EQ(misuses(), expected_misuses);
    EXPECT_EQ(alive(), 0) << "communicators are left";
  }
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  static std::string path() { return RINGTUNE_FAKE_NCCL; }
  static const NcclLibrary& library() { return NcclLibrary::open({path()}); }

  template <typename Signature>
  static Signature* function(const char* name) {
    static void* const library = ::dlopen(RINGTUNE_FAKE_NCCL, RTLD_NOW | RTLD_LOCAL);
    void* const found = library == nullptr ? nullptr : ::dlsym(library, name);
    if (found == nullptr) throw std::runtime_error(std::string("the fake NCCL lacks ") + name);
    return reinterpret_cast<Signature*>(found);
  }
  static void set_version(int version) { function<void(int)>("fake_nccl_set_version")(version); }
  static void fail(const char* call, int index, int code) {
    function<void(const char*, int, int)>("fake_nccl_fail")(call, index, code);
  }
  static void break_rank(int rank, int code) { function<void(int, int)>("fake_nccl_break")(rank, code); }
  static void hang() { function<void()>("fake_nccl_hang")(); }
  static int calls(const char* call) { return function<int(const char*)>("fake_nccl_calls")(call); }
  static int misuses() { return function<int()>("fake_nccl_misuses")(); }
  static int alive() { return function<int()>("fake_nccl_alive")(); }
  static int aborted() { return function<int()>("fake_nccl_aborted")(); }

  int expected_misuses = 0;

 private:
  FakeGpu gpu_;
};

/// Device memory of any bytes.
class RankBytes {
 public:
  RankBytes(const CudaDevice& device, const std::vector<std::byte>& bytes) : device_(device), size_(bytes.size()) {
    const CudaDevice::Current current(device);
    address_ = FakeGpu::allocate(size_ + 1);
    write(bytes);
  }
  ~RankBytes() { FakeGpu::free(address_); }
  RankBytes(const RankBytes&) = delete;
  RankBytes& operator=(const RankBytes&) = delete;

  [[nodiscard]] std::byte* data() const noexcept { return reinterpret_cast<std::byte*>(address_); }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  void write(const std::vector<std::byte>& bytes) { FakeGpu::put(address_, bytes.data(), bytes.size()); }
  /// What a program sees that waits for its stream, and looks then.
  [[nodiscard]] std::vector<std::byte> values(CudaStreamHandle stream) const {
    const CudaDevice::Current current(device_);
    FakeGpu::synchronize(stream);
    std::vector<std::byte> bytes(size_);
    FakeGpu::get(bytes.data(), address_, size_);
    return bytes;
  }

 private:
  const CudaDevice& device_;
  std::size_t size_;
  CudaAddress address_ = 0;
};

}  // namespace ringtune::testing_support
