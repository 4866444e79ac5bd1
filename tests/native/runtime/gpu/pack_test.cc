#include "runtime/gpu/pack.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "device/device_bytes.h"

namespace ringtune {
namespace {

using namespace testing_support;
using PackedRounds = std::vector<PackedRound>;

PackedRounds cut(const std::vector<std::size_t>& counts, std::size_t item_bytes, std::size_t capacity) {
  return cut_rounds(counts, item_bytes, capacity);
}

TEST(PackedRounds, SmallTensorsStandOneBehindTheOtherAtMultiplesOf64) {
  EXPECT_EQ(cut({3, 0, 16, 1}, 4, 1024), (PackedRounds{{{{0, 0, 3, 0}, {2, 0, 16, 64}, {3, 0, 1, 128}}, 132}}));
}

TEST(PackedRounds, WhatDoesNotFitGoesOnInTheNext) {
  EXPECT_EQ(cut({8, 30}, 8, 128),
            (PackedRounds{{{{0, 0, 8, 0}, {1, 0, 8, 64}}, 128}, {{{1, 8, 16, 0}}, 128}, {{{1, 24, 6, 0}}, 48}}));
}

TEST(PackedRounds, OfNothingThereAreNone) {
  EXPECT_EQ(cut({}, 4, 64), PackedRounds{});
  EXPECT_EQ(cut({0, 0}, 4, 64), PackedRounds{});
  EXPECT_THROW((void)cut({1}, 4, 100), InvariantError);
}

TEST(PackedRounds, OfSharesEveryMemberGivesAsMuchAsAllHaveRoomFor) {
  using Shares = std::vector<std::vector<PackedPart>>;
  const std::size_t bytes[] = {130, 0, 10};
  // 64 bytes for each of three.
  EXPECT_EQ(cut_shares(bytes, 255), (Shares{{{0, 0, 64, 0}, {2, 0, 10, 64}}, {{0, 64, 64, 0}}, {{0, 128, 2, 0}}}));
  const std::size_t nothing[] = {0, 0};
  EXPECT_EQ(cut_shares(nothing, 1024), Shares{});
  EXPECT_THROW((void)cut_shares(bytes, 128), InvariantError);
}

TEST(DevicePacker, MovesEachTensorWithItsFactorAndUploadsWhatItKnowsOnce) {
  const FakeGpu gpu;
  const CudaDevice device(FakeGpu::driver(), 0);
  const CudaDevice::Current current(device);
  const CudaStream stream(device);
  DeviceKernels kernels(device, kFakeCubin);
  DevicePacker packer(device, kernels);
  const auto floats = [](std::vector<float> values) {
    const auto bytes = std::as_bytes(std::span(values));
    return Bytes(bytes.begin(), bytes.end());
  };
  const DeviceBytes first(floats({1, 2, 3}));
  const DeviceBytes second(floats({4, 5}));
  const DeviceBytes third(floats({6}));
  const DeviceBytes buffer(Bytes(3 * 64));
  const std::vector<ScaledMove> moves = {{{first.address(), buffer.address(), 3}, 1.0},
                                         {{second.address(), buffer.address() + 64, 2}, 1.0},
                                         {{third.address(), buffer.address() + 128, 1}, 2.0}};
  for (int i = 0; i < 3; ++i) packer.move(moves, DType::kFloat32, DType::kFloat32, stream.handle());
  Bytes expected(3 * 64);
  const auto put = [&](std::size_t at, const Bytes& bytes) { std::copy(bytes.begin(), bytes.end(), &expected[at]); };
  put(0, floats({1, 2, 3}));
  put(64, floats({4, 5}));
  put(128, floats({12}));
  EXPECT_EQ(buffer.after(stream), expected);
  EXPECT_EQ(FakeGpu::calls("cuLaunchKernel"), 6) << "one for each factor";
  EXPECT_EQ(FakeGpu::calls("cuMemcpyHtoDAsync_v2"), 2) << "a table is uploaded once";
}

TEST(DevicePacker, ForgetsWhatItHasNotMovedForLong) {
  const FakeGpu gpu;
  const CudaDevice device(FakeGpu::driver(), 0);
  const CudaDevice::Current current(device);
  const CudaStream stream(device);
  DeviceKernels kernels(device, kFakeCubin);
  DevicePacker packer(device, kernels);
  const DeviceBytes from(Bytes(300, std::byte{7}));
  const DeviceBytes to(Bytes(300));
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < 300; ++i) {
      const ScaledMove move[] = {{{from.address() + i, to.address() + i, 1}}};
      packer.move(move, DType::kUint8, DType::kUint8, stream.handle());
    }
  }
  EXPECT_EQ(to.after(stream), Bytes(300, std::byte{7}));
}

}  // namespace
}  // namespace ringtune
