// reduce_many against one plain reference, element by element: every instruction set, dtype, operation, number of
// inputs and count around the sizes of vectors, at odd addresses, in place too. Inputs are small integers, so results
// are exact.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "device/cpu_kernels.h"
#include "device/elements.h"
#include "device/kernel_table.h"

namespace ringtune {
namespace {

using device::kernels_of;
using device::KernelTable;
using elements::as_double;
using elements::from_double;

double combine(ReduceOp op, DType dtype, double a, double b) {
  const bool flag = dtype == DType::kBool;
  switch (op) {
    case ReduceOp::kSum:
      return flag ? (a != 0 || b != 0) : a + b;
    case ReduceOp::kProduct:
      return flag ? (a != 0 && b != 0) : a * b;
    case ReduceOp::kMin:
      return a < b ? a : b;
    default:
      return a > b ? a : b;
  }
}

/// n vectors of small integers at distances of no power of two, so that no input is aligned.
struct Inputs {
  Inputs(DType dtype, std::size_t n, std::size_t count)
      : bytes(count * size_of(dtype)), stride(bytes + 3), memory(n * stride) {
    const bool is_signed = dtype != DType::kUint8;
    std::mt19937 random(static_cast<unsigned>(n * 1000 + count));
    for (std::size_t k = 0; k < n; ++k) {
      pointers.push_back(memory.data() + k * stride + 1);
      for (std::size_t i = 0; i < count; ++i) {
        // The product of eight stays within int8.
        const int size = k < 6 ? 1 + static_cast<int>(random() % 2) : 1;
        const int value = dtype == DType::kBool ? size - 1 : (is_signed && random() % 2 == 0 ? -size : size);
        from_double(dtype, memory.data() + k * stride + 1 + i * size_of(dtype), value);
      }
    }
  }
  std::size_t bytes;
  std::size_t stride;
  std::vector<std::byte> memory;
  std::vector<const std::byte*> pointers;
};

std::vector<std::byte> reference(const Inputs& inputs, DType dtype, ReduceOp op, std::size_t count, double factor) {
  std::vector<std::byte> result(inputs.bytes);
  const std::size_t width = size_of(dtype);
  for (std::size_t i = 0; i < count; ++i) {
    double value = as_double(dtype, inputs.pointers[0] + i * width);
    for (std::size_t k = 1; k < inputs.pointers.size(); ++k) {
      value = combine(op, dtype, value, as_double(dtype, inputs.pointers[k] + i * width));
    }
    from_double(dtype, result.data() + i * width, value * factor);
  }
  return result;
}

void run(const KernelTable& table, DType dtype, ReduceOp op, std::byte* out, const Inputs& inputs, double factor,
         std::byte* also = nullptr) {
  table.reduce[static_cast<std::size_t>(dtype)][static_cast<std::size_t>(op)](
      {out, inputs.pointers.data(), inputs.pointers.size(), 0, inputs.bytes, also}, factor);
}

class ReduceMany : public ::testing::TestWithParam<std::tuple<const char*, int, ReduceOp, std::size_t>> {
 protected:
  void SetUp() override {
    const auto [isa, dtype, op, n] = GetParam();
    table_ = kernels_of(isa);
    if (table_ == nullptr) GTEST_SKIP() << "this processor has no " << isa;
    dtype_ = static_cast<DType>(dtype);
    op_ = op;
    n_ = n;
  }
  const KernelTable* table_ = nullptr;
  DType dtype_{};
  ReduceOp op_{};
  std::size_t n_ = 0;
};

constexpr std::size_t kCounts[] = {0, 1, 3, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 255, 257, 511, 1029};

TEST_P(ReduceMany, IsTheReference) {
  for (const std::size_t count : kCounts) {
    const Inputs inputs(dtype_, n_, count);
    std::vector<std::byte> out(inputs.bytes + 1);
    run(*table_, dtype_, op_, out.data() + 1, inputs, 1.0);
    EXPECT_TRUE(std::vector<std::byte>(out.begin() + 1, out.end()) == reference(inputs, dtype_, op_, count, 1.0))
        << count;
  }
}

TEST_P(ReduceMany, ScalesOnceAtTheEnd) {
  const double factor = dtype_ == DType::kBool ? 1.0 : 0.5;
  const Inputs inputs(dtype_, n_, 1029);
  std::vector<std::byte> out(inputs.bytes);
  run(*table_, dtype_, op_, out.data(), inputs, factor);
  EXPECT_TRUE(out == reference(inputs, dtype_, op_, 1029, factor));
}

/// `out` may be any of the inputs: the first, the last, one between.
TEST_P(ReduceMany, WritesOverAnInput) {
  for (std::size_t target = 0; target < n_; ++target) {
    Inputs inputs(dtype_, n_, 1029);
    const std::vector<std::byte> expected = reference(inputs, dtype_, op_, 1029, 1.0);
    std::byte* const out = inputs.memory.data() + target * inputs.stride + 1;
    run(*table_, dtype_, op_, out, inputs, 1.0);
    EXPECT_TRUE(std::memcmp(out, expected.data(), expected.size()) == 0) << target;
  }
}

/// As when a sum goes back where one of its inputs came from.
TEST_P(ReduceMany, OfTwoWritesTheResultTwice) {
  if (n_ != 2) return;
  for (const std::size_t count : kCounts) {
    Inputs inputs(dtype_, n_, count);
    const std::vector<std::byte> expected = reference(inputs, dtype_, op_, count, 1.0);
    std::vector<std::byte> out(inputs.bytes + 1);
    std::byte* const also = inputs.memory.data() + inputs.stride + 1;
    run(*table_, dtype_, op_, out.data() + 1, inputs, 1.0, also);
    EXPECT_TRUE(std::vector<std::byte>(out.begin() + 1, out.end()) == expected) << count;
    EXPECT_TRUE(std::vector<std::byte>(also, also + inputs.bytes) == expected) << count;
  }
}

std::string name_of_case(const ::testing::TestParamInfo<ReduceMany::ParamType>& info) {
  const auto [isa, dtype, op, n] = info.param;
  return std::string(isa) + "_" + std::string(name_of(static_cast<DType>(dtype))) + "_" + std::string(name_of(op)) +
         "_" + std::to_string(n);
}
INSTANTIATE_TEST_SUITE_P(All, ReduceMany,
                         ::testing::Combine(::testing::Values("portable", "avx2", "avx512", "avx512bf16", "avx512fp16"),
                                            ::testing::Range(0, kReducedDTypeCount),
                                            ::testing::Values(ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax,
                                                              ReduceOp::kProduct),
                                            ::testing::Values(2, 3, 4, 5, 8)),
                         name_of_case);

/// 2048 + 1 is no float16: rounded after each addition the ones would be lost.
TEST(ReduceManyRounding, HalvesAreSummedInFloat32) {
  std::uint16_t big;
  std::uint16_t one;
  std::uint16_t result;
  from_double(DType::kFloat16, reinterpret_cast<std::byte*>(&big), 2048);
  from_double(DType::kFloat16, reinterpret_cast<std::byte*>(&one), 1);
  const auto* const one_at = reinterpret_cast<const std::byte*>(&one);
  const std::byte* const in[] = {reinterpret_cast<const std::byte*>(&big), one_at, one_at};
  auto* const out = reinterpret_cast<std::byte*>(&result);
  reduce_many(out, in, 1, DType::kFloat16, ReduceOp::kSum, 1.0);
  EXPECT_EQ(as_double(DType::kFloat16, out), 2050);
  reduce_many(out, in, 1, DType::kFloat16, ReduceOp::kSum, 0.5);
  EXPECT_EQ(as_double(DType::kFloat16, out), 1025);
}

TEST(ReduceTwice, ScalesEveryDtype) {
  for (int dtype = 0; dtype < kReducedDTypeCount; ++dtype) {
    const auto type = static_cast<DType>(dtype);
    const double factor = type == DType::kBool ? 1.0 : 2.0;
    Inputs inputs(type, 2, 1029);
    const std::vector<std::byte> expected = reference(inputs, type, ReduceOp::kMax, 1029, factor);
    std::vector<std::byte> out(inputs.bytes);
    std::byte* const also = inputs.memory.data() + 1;
    reduce_twice(out.data(), also, std::span<const std::byte* const, 2>(inputs.pointers.data(), 2), 1029, type,
                 ReduceOp::kMax, factor);
    EXPECT_TRUE(out == expected) << name_of(type);
    EXPECT_TRUE(std::memcmp(also, expected.data(), expected.size()) == 0) << name_of(type);
  }
}

TEST(ReduceManyDispatch, OneInputIsACopyAndNoneIsRefused) {
  const std::int64_t value = (std::int64_t{1} << 53) + 1;
  std::int64_t copy = 0;
  const std::byte* const in[] = {reinterpret_cast<const std::byte*>(&value)};
  reduce_many(reinterpret_cast<std::byte*>(&copy), in, 1, DType::kInt64, ReduceOp::kSum, 1.0);
  EXPECT_EQ(copy, value);
  EXPECT_THROW(reduce_many(reinterpret_cast<std::byte*>(&copy), {}, 1, DType::kInt64, ReduceOp::kSum, 1.0),
               InvariantError);
  EXPECT_THROW(reduce_many(reinterpret_cast<std::byte*>(&copy), in, 1, DType::kInt64, ReduceOp::kAdasum, 1.0),
               InvariantError);
}

}  // namespace
}  // namespace ringtune
