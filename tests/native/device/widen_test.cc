// Reductions of 16-bit elements that are not rounded to 16 bits again: every instruction set, against the same sums in
// float32.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "device/cpu_kernels.h"
#include "device/elements.h"
#include "device/kernel_table.h"

namespace ringtune {
namespace {

using elements::as_double;
using elements::from_double;

/// Numbers with all bits of the type in use, so that most sums need rounding.
std::vector<std::byte> numbers(DType dtype, std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> any(-8.0, 8.0);
  std::vector<std::byte> bytes(count * 2);
  for (std::size_t i = 0; i < count; ++i) from_double(dtype, bytes.data() + 2 * i, any(random));
  return bytes;
}

float combined(ReduceOp op, float a, float b) {
  if (op == ReduceOp::kMin) return a < b ? a : b;
  if (op == ReduceOp::kMax) return a > b ? a : b;
  return op == ReduceOp::kSum ? a + b : a * b;
}

class Widen : public ::testing::TestWithParam<std::tuple<const char*, DType, ReduceOp>> {};

TEST_P(Widen, EqualsTheReductionInFloat32) {
  const auto [isa, dtype, op] = GetParam();
  const device::KernelTable* const table = device::kernels_of(isa);
  if (table == nullptr) GTEST_SKIP() << "this processor has no " << isa;
  const auto row = static_cast<std::size_t>(dtype) - device::kFirstFloating;
  const device::WidenKernel kernel = table->widen[row][static_cast<std::size_t>(op)];
  for (const std::size_t count : {0, 1, 3, 16, 17, 63, 64, 65, 131, 1000}) {
    for (const std::size_t n : {1, 2, 3, 5}) {
      std::vector<std::vector<std::byte>> inputs;
      std::vector<const std::byte*> in;
      for (std::size_t k = 0; k < n; ++k) inputs.push_back(numbers(dtype, count, static_cast<unsigned>(k)));
      for (const auto& one : inputs) in.push_back(one.data());
      std::vector<float> out(count + 1, -77.0F);
      kernel({reinterpret_cast<std::byte*>(out.data()), in.data(), n, count}, 1.0F / 3);
      for (std::size_t i = 0; i < count; ++i) {
        auto sum = static_cast<float>(as_double(dtype, in[0] + 2 * i));
        for (std::size_t k = 1; k < n; ++k) {
          sum = combined(op, sum, static_cast<float>(as_double(dtype, in[k] + 2 * i)));
        }
        ASSERT_EQ(out[i], sum * (1.0F / 3)) << "element " << i << " of " << count << ", " << n << " inputs";
      }
      EXPECT_EQ(out.back(), -77.0F) << "beyond the end";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Widen,
                         ::testing::Combine(::testing::Values("portable", "avx2", "avx512", "avx512bf16", "avx512fp16"),
                                            ::testing::Values(DType::kFloat16, DType::kBfloat16),
                                            ::testing::Values(ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax,
                                                              ReduceOp::kProduct)),
                         [](const ::testing::TestParamInfo<Widen::ParamType>& row) {
                           return std::string(std::get<0>(row.param)) + "_" +
                                  std::string(name_of(std::get<1>(row.param))) + "_" +
                                  std::string(name_of(std::get<2>(row.param)));
                         });

/// Into the other floating dtypes the sum goes by way of float32, the factor in the wider of the two.
TEST(ReduceConvert, IntoOtherTypesRoundsTheSumOnce) {
  constexpr std::size_t kCount = 2500;
  const std::vector<std::byte> a = numbers(DType::kFloat16, kCount, 1);
  const std::vector<std::byte> b = numbers(DType::kFloat16, kCount, 2);
  const std::vector<const std::byte*> in{a.data(), b.data()};
  for (const DType dtype : {DType::kFloat64, DType::kBfloat16}) {
    std::vector<std::byte> out(kCount * size_of(dtype));
    reduce_convert(out.data(), dtype, in, DType::kFloat16, kCount, ReduceOp::kSum, 0.5);
    for (std::size_t i = 0; i < kCount; ++i) {
      const float sum = static_cast<float>(as_double(DType::kFloat16, in[0] + 2 * i)) +
                        static_cast<float>(as_double(DType::kFloat16, in[1] + 2 * i));
      std::byte element[8];
      from_double(dtype, element, static_cast<double>(sum) * 0.5);
      ASSERT_EQ(as_double(dtype, out.data() + i * size_of(dtype)), as_double(dtype, element)) << i;
    }
  }
  EXPECT_THROW(reduce_convert(nullptr, DType::kFloat32, in, DType::kFloat64, 1, ReduceOp::kSum, 1.0), InvariantError);
  EXPECT_THROW(reduce_convert(nullptr, DType::kFloat32, in, DType::kFloat16, 1, ReduceOp::kAdasum, 1.0),
               InvariantError);
}

}  // namespace
}  // namespace ringtune
