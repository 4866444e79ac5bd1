#include "device/cuda.h"

#include <gtest/gtest.h>

#include <optional>

#include "base/error.h"
#include "device/fake_gpu.h"
#include "thrown.h"

namespace ringtune {
namespace {

using testing_support::DeviceArray;
using testing_support::FakeGpu;
using testing_support::message_of;

TEST(CudaDriver, IsOpenedOnceAndNamesTheDevices) {
  const FakeGpu gpu;
  const CudaDriver& driver = FakeGpu::driver();
  EXPECT_EQ(&driver, &CudaDriver::open(FakeGpu::path()));
  EXPECT_EQ(driver.version(), 12040);
  EXPECT_EQ(driver.device_count(), 2);
  EXPECT_EQ(driver.device_name(1), "Fake GPU 1");
  EXPECT_EQ(driver.compute_capability(0), 90);
  EXPECT_TRUE(driver.can_access_peer(0, 1));
}

TEST(CudaDriver, OneThatIsMissingSaysSoAndWhatToDo) {
  const std::string message = message_of<DeviceError>([] { (void)CudaDriver::open("libno-such-driver.so"); });
  EXPECT_NE(message.find("tensors on a GPU need NVIDIA's driver, which cannot be opened (libno-such-driver.so"),
            std::string::npos)
      << message;
  EXPECT_NE(message.find("or keep the tensors on the CPU"), std::string::npos) << message;
}

TEST(CudaDriver, OneThatIsNoDriverNamesWhatItLacks) {
  const std::string message = message_of<DeviceError>([] { (void)CudaDriver::open("libc.so.6"); });
  EXPECT_EQ(message.find("the CUDA driver libc.so.6 lacks cuInit, cuDriverGetVersion, "), 0U) << message;
  EXPECT_NE(message.find("install one of CUDA 11.0 or newer"), std::string::npos) << message;
}

TEST(CudaDriver, OneThatIsTooOldIsRefusedAndTriedAgain) {
  const FakeGpu gpu;
  static std::string detour = "/";  // a path that no repetition of this test has opened
  detour += "./";
  const std::string other = RINGTUNE_FAKE_CUDA_FOLDER + detour + RINGTUNE_FAKE_CUDA_NAME;
  FakeGpu::set_version(10020);
  EXPECT_EQ(message_of<DeviceError>([&] { (void)CudaDriver::open(other); }),
            "the CUDA driver " + other + " is of CUDA 10.2, expected at least 11.0: install a newer one");
  FakeGpu::set_version(12080);
  EXPECT_EQ(CudaDriver::open(other).version(), 12080);
}

TEST(CudaDriver, AnErrorSaysWhichCallWhatAndWhatToDo) {
  const FakeGpu gpu;
  EXPECT_EQ(message_of<DeviceError>([] { FakeGpu::driver().check(700, "cuEventSynchronize"); }),
            "cuEventSynchronize failed: an illegal memory access was encountered (CUDA_ERROR_ILLEGAL_ADDRESS, error "
            "700); a kernel of this process has used memory that is not its own, and the GPU's context is lost: run "
            "with CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer to find it");
  EXPECT_EQ(message_of<DeviceError>([] { (void)CudaDevice(FakeGpu::driver(), 2); }),
            "cuDeviceGet failed: the fake was told to fail (CUDA_ERROR_OF_THE_FAKE, error 101); there is no such GPU: "
            "look at CUDA_VISIBLE_DEVICES and at the device's number");
}

TEST(Cuda, WhatIsMadeIsGivenBack) {
  const FakeGpu gpu;
  {
    const CudaDevice device(FakeGpu::driver(), 1);
    const CudaDevice::Current current(device);
    const CudaStream stream(device);
    const CudaEvent event(device);
    PinnedPool pool(device);
    (void)pool.take(100);
    EXPECT_EQ(FakeGpu::alive(), 5);  // context, stream, event, and of the pool a slab and an event
  }
  EXPECT_EQ(FakeGpu::alive(), 0);
}

TEST(Cuda, AnErrorWhileItIsMadeLeavesNothing) {
  const FakeGpu gpu;
  {
    const CudaDevice device(FakeGpu::driver(), 0);
    const CudaDevice::Current current(device);
    PinnedPool pool(device);
    FakeGpu::fail("cuMemHostAlloc", 0, 2);
    EXPECT_THROW((void)pool.take(100), DeviceError);
    EXPECT_EQ(pool.held_bytes(), 0U);
    EXPECT_EQ(FakeGpu::alive(), 1);
    (void)pool.take(100);  // the machine has memory again
  }
  EXPECT_EQ(FakeGpu::alive(), 0);
}

TEST(Cuda, AStreamWaitsForAnEventOfAnother) {
  const FakeGpu gpu;
  const CudaDevice device(FakeGpu::driver(), 0);
  const CudaDevice::Current current(device);
  CudaStream kernels(device);
  CudaStream copies(device);
  CudaEvent written(device);
  CudaEvent copied(device);
  PinnedPool pool(device);
  std::byte* const host = pool.take(12).data;
  DeviceArray<int> array(device, {1, 2, 3});
  array.fill(kernels.handle(), 7);
  const auto look = [&] {
    copies.copy_to_host(host, array.data(), 12);
    copied.record(copies.handle());
    copied.synchronize();
    return reinterpret_cast<const int*>(host)[2];
  };
  EXPECT_EQ(look(), 3) << "the fake must show that nobody waited for the kernel";
  written.record(kernels.handle());
  copies.wait(written);
  EXPECT_EQ(look(), 7);
}

TEST(Cuda, PinnedBlocksAreUsedAgain) {
  const FakeGpu gpu;
  const CudaDevice device(FakeGpu::driver(), 0);
  const CudaDevice::Current current(device);
  PinnedPool pool(device);
  PinnedBlock& small = pool.take(5000);
  PinnedBlock& large = pool.take(5 << 20);
  EXPECT_EQ(small.bytes, 8192U);
  EXPECT_EQ(large.bytes, 8U << 20);
  EXPECT_EQ(pool.held_bytes(), (16U << 20) + (8U << 20));
  PinnedBlock& second = pool.take(8192);
  EXPECT_GE(second.data, small.data + 8192);
  pool.give_back(small);
  EXPECT_EQ(&pool.take(4097), &small);
  pool.give_back(large);
  EXPECT_EQ(&pool.take(7 << 20), &large);
  EXPECT_EQ(FakeGpu::calls("cuMemHostAlloc"), 2);
}

TEST(Cuda, ABlockThatAStreamStillReadsIsNotWrittenInto) {
  const FakeGpu gpu;
  const CudaDevice device(FakeGpu::driver(), 0);
  const CudaDevice::Current current(device);
  CudaStream stream(device);
  PinnedPool pool(device);
  PinnedBlock& first = pool.take(100);
  first.last_use.record(stream.handle());
  pool.give_back(first);
  EXPECT_FALSE(first.last_use.reached());
  PinnedBlock& second = pool.take_idle(100);
  EXPECT_NE(&second, &first);
  first.last_use.synchronize();
  EXPECT_EQ(&pool.take_idle(100), &first);
}

TEST(Cuda, MemoryOfAnotherDeviceOrOfTheHostIsRefused) {
  const FakeGpu gpu;
  const CudaDevice first(FakeGpu::driver(), 0);
  const CudaDevice second(FakeGpu::driver(), 1);
  const DeviceArray<int> array(second, {1});
  second.check_owns(array.data(), "tensor 'a'");
  EXPECT_EQ(message_of<InvalidArgument>([&] { first.check_owns(array.data(), "tensor 'a'"); }),
            "tensor 'a': its memory is that of GPU 1, expected that of GPU 0");
  const int host = 0;
  EXPECT_EQ(message_of<InvalidArgument>([&] { first.check_owns(&host, "tensor 'a'"); }),
            "tensor 'a': its memory is no GPU's, expected that of GPU 0");
}

TEST(Cuda, AGraphThatIsBeingRecordedIsRefused) {
  const FakeGpu gpu;
  const CudaDevice device(FakeGpu::driver(), 0);
  const CudaDevice::Current current(device);
  const CudaStream stream(device);
  device.check_not_capturing(stream.handle(), "tensor 'a'");
  FakeGpu::capture(stream.handle(), true);
  const std::string message =
      message_of<InvalidArgument>([&] { device.check_not_capturing(stream.handle(), "tensor 'a'"); });
  EXPECT_EQ(message.find("tensor 'a' cannot be part of a CUDA graph"), 0U) << message;
}

}  // namespace
}  // namespace ringtune
