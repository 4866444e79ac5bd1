// convert_copy against the compiler's own conversions: every instruction set and pair of floating dtypes.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
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

using device::kernels_of;
using device::KernelTable;
using elements::as_double;
using elements::from_double;

/// Every pattern for the 16-bit types; for the others numbers around every 16-bit one, so that ties and both neighbours
/// of a tie are among them, and random patterns.
std::vector<std::byte> inputs_of(DType dtype) {
  std::vector<std::byte> bytes;
  std::mt19937_64 random(3);
  for (std::uint32_t pattern = 0; pattern < 65536; ++pattern) {
    const auto bits = static_cast<std::uint16_t>(pattern);
    std::byte element[8];
    if (size_of(dtype) == 2) {
      std::memcpy(element, &bits, 2);
    } else {
      const double half = elements::float_of_half(bits);
      const double bfloat = elements::float_of_bfloat(bits);
      const double factors[] = {1, 1 + std::ldexp(1, -11), 1 + std::ldexp(3, -11), 1 + std::ldexp(1, -8), 1 + 1e-5};
      from_double(dtype, element, (pattern % 2 == 0 ? half : bfloat) * factors[random() % 5]);
      if (pattern % 7 == 0) {
        const std::uint64_t any = random();
        std::memcpy(element, &any, 8);
      }
    }
    bytes.insert(bytes.end(), element, element + size_of(dtype));
  }
  return bytes;
}

class Convert : public ::testing::TestWithParam<std::tuple<const char*, int, int>> {
 protected:
  void SetUp() override {
    table_ = kernels_of(std::get<0>(GetParam()));
    if (table_ == nullptr) GTEST_SKIP() << "this processor has no " << std::get<0>(GetParam());
    from_ = static_cast<DType>(std::get<1>(GetParam()));
    to_ = static_cast<DType>(std::get<2>(GetParam()));
    kernel_ = table_->convert[static_cast<std::size_t>(from_) - device::kFirstFloating]
                             [static_cast<std::size_t>(to_) - device::kFirstFloating];
  }

  /// The element after the cast by the reference: in float64 when either side is, else in float32.
  double expected(const std::byte* at, double factor) const {
    const bool in_double = from_ == DType::kFloat64 || to_ == DType::kFloat64;
    const double value = as_double(from_, at);
    const double product = in_double ? value * factor : static_cast<float>(value) * static_cast<float>(factor);
    std::byte element[8];
    from_double(to_, element, product);
    return as_double(to_, element);
  }

  const KernelTable* table_ = nullptr;
  DType from_{};
  DType to_{};
  device::ConvertKernel kernel_ = nullptr;
};

TEST_P(Convert, RoundsEveryElementAsTheReference) {
  const std::vector<std::byte> in = inputs_of(from_);
  const std::size_t count = in.size() / size_of(from_);
  for (const double factor : {1.0, 1.0 / 3.0}) {
    std::vector<std::byte> out(count * size_of(to_));
    kernel_(out.data(), in.data(), count, factor);
    for (std::size_t i = 0; i < count; ++i) {
      const double want = expected(in.data() + i * size_of(from_), factor);
      const double got = as_double(to_, out.data() + i * size_of(to_));
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(got)) << i;
      } else {
        ASSERT_TRUE(want == got && std::signbit(want) == std::signbit(got)) << i << ": " << got << " for " << want;
      }
    }
  }
}

TEST_P(Convert, TouchesNothingBesideItsElements) {
  for (const std::size_t count : {0, 1, 3, 4, 7, 8, 15, 16, 17, 63, 64, 65, 131}) {
    std::vector<std::byte> in(count * size_of(from_) + 1);
    std::vector<std::byte> out(count * size_of(to_) + 2, std::byte{0x5a});
    for (std::size_t i = 0; i < count; ++i)
      from_double(from_, in.data() + 1 + i * size_of(from_), static_cast<int>(i) - 3);
    kernel_(out.data() + 1, in.data() + 1, count, 2.0);
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(as_double(to_, out.data() + 1 + i * size_of(to_)), 2 * (static_cast<int>(i) - 3)) << count;
    }
    EXPECT_TRUE(out.front() == std::byte{0x5a} && out.back() == std::byte{0x5a});
  }
}

constexpr int kFirst = static_cast<int>(DType::kFloat16);
INSTANTIATE_TEST_SUITE_P(All, Convert,
                         ::testing::Combine(::testing::Values("portable", "avx2", "avx512", "avx512bf16", "avx512fp16"),
                                            ::testing::Range(kFirst, kFirst + 4), ::testing::Range(kFirst, kFirst + 4)),
                         [](const ::testing::TestParamInfo<Convert::ParamType>& row) {
                           return std::string(std::get<0>(row.param)) + "_" +
                                  std::string(name_of(static_cast<DType>(std::get<1>(row.param)))) + "_" +
                                  std::string(name_of(static_cast<DType>(std::get<2>(row.param))));
                         });

TEST(ConvertDispatch, EqualTypesAreScaledAndIntegersRefused) {
  const std::int64_t value = (std::int64_t{1} << 53) + 1;
  std::int64_t copy = 0;
  const auto* const in = reinterpret_cast<const std::byte*>(&value);
  auto* const out = reinterpret_cast<std::byte*>(&copy);
  convert_copy(out, DType::kInt64, in, DType::kInt64, 1, 1.0);
  EXPECT_EQ(copy, value);
  EXPECT_THROW(convert_copy(out, DType::kFloat64, in, DType::kInt64, 1, 1.0), InvariantError);
  const float half = 0.5F;
  convert_copy(out, DType::kBfloat16, reinterpret_cast<const std::byte*>(&half), DType::kFloat32, 1, 4.0);
  EXPECT_EQ(as_double(DType::kBfloat16, out), 2.0);
}

}  // namespace
}  // namespace ringtune
