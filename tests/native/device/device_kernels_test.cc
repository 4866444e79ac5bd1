#include "device/device_kernels.h"

#include <gtest/gtest.h>

#include <deque>
#include <numeric>

#include "base/error.h"
#include "device/adasum_kernels.h"
#include "device/cpu_kernels.h"
#include "device/device_bytes.h"
#include "thrown.h"

namespace ringtune {
namespace {

using namespace testing_support;

constexpr DType kAllDTypes[] = {DType::kUint8,   DType::kInt8,     DType::kInt16,   DType::kInt32,   DType::kInt64,
                                DType::kFloat16, DType::kBfloat16, DType::kFloat32, DType::kFloat64, DType::kBool};

/// A device with the kernels in it, its context current.
class Kernels : public ::testing::Test {
 protected:
  FakeGpu gpu;
  CudaDevice device{FakeGpu::driver(), 0};
  CudaDevice::Current current{device};
  CudaStream stream{device};
  DeviceKernels kernels{device, kFakeCubin};
  BatchTable table{device};
};

/// Tensors of uneven sizes at every alignment of an element, moved in one launch from `from` to `to`.
struct Batch {
  Batch(const DeviceCast& cast, std::initializer_list<std::size_t> counts) {
    unsigned seed = 1;
    for (const std::size_t count : counts) {
      in.push_back(random_elements(cast.from, count, seed));
      sources.emplace_back(in.back(), seed % 5 * size_of(cast.from));
      results.emplace_back(Bytes(count * size_of(cast.to), std::byte{0x77}), seed / 5 % 5 * size_of(cast.to));
      moves.push_back({sources.back().address(), results.back().address(), count});
      ++seed;
    }
  }
  std::vector<Bytes> in;
  std::deque<DeviceBytes> sources;
  std::deque<DeviceBytes> results;
  std::vector<DeviceMove> moves;
};

class Casts : public Kernels, public ::testing::WithParamInterface<DeviceCast> {};

TEST_P(Casts, GiveTheBitsOfTheLoopsOnTheCpu) {
  const DeviceCast cast = GetParam();
  const Batch batch(cast, {1, 7, 0,      255, 256, 1000, 4096, 4099, 10'000, 33, 2,   3,  4,
                           5, 6, 20'011, 64,  8,   9,    1,    513,  2049,   12, 100, 16, 31});
  kernels.move(table, batch.moves, cast, stream.handle());
  EXPECT_EQ(FakeGpu::calls("cuLaunchKernel"), 1);
  for (std::size_t i = 0; i < batch.in.size(); ++i) {
    const std::size_t count = batch.moves[i].count;
    Bytes expected(count * size_of(cast.to));
    convert_copy(expected.data(), cast.to, batch.in[i].data(), cast.from, count, cast.factor);
    EXPECT_EQ(first_difference(cast.to, batch.results[i].after(stream), expected), -1) << "tensor " << i;
  }
}

std::vector<DeviceCast> all_casts() {
  std::vector<DeviceCast> casts;
  for (const DType from : kAllDTypes) {
    casts.push_back({from, from, 1.0});
    if (from != DType::kBool) casts.push_back({from, from, 1.0 / 3});
    for (const DType to : kAllDTypes) {
      if (!is_floating(from) || !is_floating(to) || from == to) continue;
      casts.push_back({from, to, 1.0});
      casts.push_back({from, to, 0.125});
    }
  }
  casts.push_back({DType::kInt8, DType::kInt8, -200.0});  // beyond both ends
  casts.push_back({DType::kInt64, DType::kInt64, 1e18});
  return casts;
}
INSTANTIATE_TEST_SUITE_P(Kernels, Casts, ::testing::ValuesIn(all_casts()));

struct Reduction {
  DType dtype;
  ReduceOp op;
};
class Reductions : public Kernels, public ::testing::WithParamInterface<Reduction> {};

TEST_P(Reductions, GiveTheBitsOfTheLoopsOnTheCpu) {
  const auto [dtype, op] = GetParam();
  const std::size_t unit = size_of(dtype);
  struct Case {
    std::size_t count, a_offset, b_offset;  // elements
  };
  for (const Case& at : {Case{1, 0, 0}, Case{4096, 0, 0}, Case{20'001, 0, 0}, Case{9000, 3, 3}, Case{9001, 3, 2}}) {
    const Bytes a = random_elements(dtype, at.count, 7);
    const Bytes b = random_elements(dtype, at.count, 8);
    const DeviceBytes left(a, at.a_offset * unit);
    const DeviceBytes right(b, at.b_offset * unit);
    kernels.reduce({left.address(), left.address(), right.address(), at.count}, dtype, op, stream.handle());
    Bytes expected = a;
    reduce_into(expected.data(), b.data(), at.count, dtype, op);
    EXPECT_EQ(first_difference(dtype, left.after(stream), expected), -1) << at.count << " elements";
    EXPECT_EQ(right.now(), b);
  }
}

std::vector<Reduction> all_reductions() {
  std::vector<Reduction> all;
  for (const DType dtype : kAllDTypes) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      all.push_back({dtype, op});
    }
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Kernels, Reductions, ::testing::ValuesIn(all_reductions()));

TEST_F(Kernels, DotProductsOfManyTensorsAreThoseOfEach) {
  for (const DType dtype : {DType::kFloat16, DType::kBfloat16, DType::kFloat32, DType::kFloat64}) {
    std::deque<DeviceBytes> memory;
    std::vector<DeviceMove> pairs;
    std::vector<double> expected;
    for (const std::size_t count : {std::size_t{5}, std::size_t{0}, std::size_t{40'001}, std::size_t{256}}) {
      Bytes a(count * size_of(dtype));
      Bytes b(count * size_of(dtype));
      for (std::size_t i = 0; i < count; ++i) {  // small integers: every order of additions gives the same sums
        elements::from_double(dtype, a.data() + i * size_of(dtype), static_cast<double>(i % 13) - 5);
        elements::from_double(dtype, b.data() + i * size_of(dtype), static_cast<double>(i % 7) - 2);
      }
      const DotProducts dots = ringtune::dot_products(a.data(), b.data(), count, dtype);
      expected.insert(expected.end(), {dots.ab, dots.aa, dots.bb});
      const CudaAddress from = memory.emplace_back(a, size_of(dtype)).address();
      pairs.push_back({from, memory.emplace_back(b).address(), count});
    }
    const DeviceBytes products(Bytes(expected.size() * sizeof(double)));
    kernels.dot_products(table, pairs, dtype, products.address(), stream.handle());
    const Bytes found = products.after(stream);
    EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size()), 0) << name_of(dtype);
  }
}

TEST_F(Kernels, DotProductsHaveTheSameBitsWhateverIsBesideThem) {
  const Bytes a = random_elements(DType::kInt16, 50'000, 1);  // of bfloat16 below infinity
  Bytes numbers = a;
  for (std::size_t i = 1; i < numbers.size(); i += 2) numbers[i] &= std::byte{0xbf};
  const DeviceBytes memory(numbers);
  const DeviceBytes products(Bytes(6 * sizeof(double)));
  const DeviceMove pair{memory.address(), memory.address(), 50'000};
  kernels.dot_products(table, std::vector{pair}, DType::kBfloat16, products.address(), stream.handle());
  const Bytes alone = products.after(stream);
  kernels.dot_products(table, std::vector{DeviceMove{pair.from, pair.to, 3}, pair}, DType::kBfloat16,
                       products.address(), stream.handle());
  const Bytes beside = products.after(stream);
  EXPECT_EQ(std::memcmp(alone.data(), beside.data() + 24, 24), 0);
  EXPECT_NE(std::memcmp(alone.data(), beside.data(), 24), 0);
}

TEST_F(Kernels, CombinedVectorsHaveTheBitsOfTheLoopsOnTheCpu) {
  constexpr DotProducts kParts[] = {{1.5, 4.0, 2.0}, {0.25, 0.5, 1.0}, {-0.5, 1.0, 4.5}};
  Bytes parts(sizeof kParts);
  std::memcpy(parts.data(), kParts, sizeof kParts);
  const DeviceBytes products(parts);
  for (const DType dtype : {DType::kFloat16, DType::kBfloat16, DType::kFloat32, DType::kFloat64}) {
    for (const std::size_t count : {1, 4096, 20'001}) {
      const Bytes a = random_elements(dtype, count, 7);
      const Bytes b = random_elements(dtype, count, 8);
      const DeviceBytes left(a, size_of(dtype));
      const DeviceBytes right(b);
      kernels.combine({right.address(), left.address(), right.address(), count}, dtype, products.address(), 3,
                      stream.handle());
      Bytes expected(a.size());  // of all three: 1.25, 5.5 and 7.5
      scaled_sum(expected.data(), {a.data(), 1.0 - 1.25 / 11.0, b.data(), 1.0 - 1.25 / 15.0}, count, dtype);
      EXPECT_EQ(first_difference(dtype, right.after(stream), expected), -1) << count << " of " << name_of(dtype);
      EXPECT_EQ(left.now(), a);
    }
  }
  const Bytes number = random_elements(DType::kFloat32, 5, 3);
  const DeviceBytes zero(Bytes(20));
  const DeviceBytes alone(number);
  const DeviceBytes none(Bytes(DeviceKernels::kProductsBytes));
  kernels.combine({zero.address(), zero.address(), alone.address(), 5}, DType::kFloat32, none.address(), 1,
                  stream.handle());
  EXPECT_EQ(first_difference(DType::kFloat32, zero.after(stream), number), -1) << "a zero vector is no division";
}

TEST_F(Kernels, ATableIsUploadedOnlyWhenItChanged) {
  const DeviceCast cast{DType::kFloat32, DType::kBfloat16};
  const Batch batch(cast, {100, 5000});
  const auto uploads = [] { return FakeGpu::calls("cuMemcpyHtoDAsync_v2"); };
  kernels.move(table, batch.moves, cast, stream.handle());
  kernels.move(table, batch.moves, cast, stream.handle());
  EXPECT_EQ(uploads(), 1);
  kernels.move(table, batch.moves, {cast.from, cast.to, 0.5}, stream.handle());
  EXPECT_EQ(uploads(), 2);
  kernels.move(table, std::span(batch.moves).first(1), cast, stream.handle());
  EXPECT_EQ(uploads(), 3);
  kernels.move(table, {}, cast, stream.handle());
  EXPECT_EQ(uploads(), 3);
  EXPECT_EQ(FakeGpu::calls("cuLaunchKernel"), 4);
}

TEST_F(Kernels, ATableThatCouldNotBeUploadedIsMadeAnew) {
  const DeviceCast cast{DType::kFloat32, DType::kFloat32};
  const Batch batch(cast, {1000});
  FakeGpu::fail("cuMemcpyHtoDAsync_v2", 0, 2);
  EXPECT_THROW(kernels.move(table, batch.moves, cast, stream.handle()), DeviceError);
  kernels.move(table, batch.moves, cast, stream.handle());
  EXPECT_EQ(batch.results[0].after(stream), batch.in[0]);
}

TEST_F(Kernels, ALaunchIsBehindWhatIsInTheStream) {
  const DeviceBytes from(Bytes(4000, std::byte{1}));
  const DeviceBytes to(Bytes(4000, std::byte{2}));
  FakeGpu::function<int(CudaAddress, unsigned, std::size_t, void*)>("cuMemsetD32Async")(from.address(), 0x03030303,
                                                                                        1000, stream.handle());
  const std::vector<DeviceMove> moves{{from.address(), to.address(), 1000}};
  kernels.move(table, moves, {DType::kFloat32, DType::kFloat32}, stream.handle());
  EXPECT_EQ(to.now(), Bytes(4000, std::byte{2})) << "the fake must do nothing before somebody waits";
  EXPECT_EQ(to.after(stream), Bytes(4000, std::byte{3}));
}

TEST_F(Kernels, MemoryBeyondAnAllocationIsAnError) {
  const DeviceBytes memory(Bytes(64));
  const std::vector<DeviceMove> moves{{memory.address(), memory.address() + 32, 64}};
  kernels.move(table, moves, {DType::kUint8, DType::kUint8}, stream.handle());
  EXPECT_EQ(FakeGpu::function<int(void*)>("cuStreamSynchronize")(stream.handle()), 700);
}

TEST_F(Kernels, WhatIsNoCubinIsRefused) {
  const Bytes text(100, std::byte{'x'});
  EXPECT_EQ(
      message_of<DeviceError>([&] { const DeviceKernels none(device, text); }),
      "what was given as the kernels of GPU 0 is no cubin (100 bytes, expected those of an ELF file): compile them "
      "anew");
  FakeGpu::fail("cuModuleLoadData", 0, 209);
  EXPECT_NE(message_of<DeviceError>([&] { const DeviceKernels none(device, kFakeCubin); }).find("cuModuleLoadData"),
            std::string::npos);
}

TEST_F(Kernels, AKernelThatIsMissingIsNamed) {
  FakeGpu::fail("cuModuleGetFunction", 0, 500);
  const DeviceBytes memory(Bytes(64));
  const auto reduce = [&] {
    kernels.reduce({memory.address(), memory.address(), memory.address(), 8}, DType::kFloat16, ReduceOp::kSum,
                   stream.handle());
  };
  EXPECT_NE(message_of<DeviceError>(reduce).find("cuModuleGetFunction(reduce_float16_sum)"), std::string::npos);
  reduce();  // it is asked for again
}

TEST(DeviceMemory, GrowsAndIsGivenBack) {
  const FakeGpu gpu;
  {
    const CudaDevice device(FakeGpu::driver(), 0);
    const CudaDevice::Current current(device);
    DeviceMemory memory(device);
    EXPECT_EQ(memory.address(), 0U);
    const CudaAddress first = memory.reserve(1000);
    EXPECT_EQ(memory.reserve(60'000), first);
    EXPECT_NE(memory.reserve(1 << 20), first);
    EXPECT_EQ(memory.bytes(), 1U << 20);
    EXPECT_EQ(FakeGpu::calls("cuMemFree_v2"), 0) << "a stream may still use what it was";
  }
  EXPECT_EQ(FakeGpu::alive(), 0);
}

}  // namespace
}  // namespace ringtune
