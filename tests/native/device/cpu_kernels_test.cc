#include "device/cpu_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "device/elements.h"
#include "device/kernel_table.h"

namespace ringtune {
namespace {

using device::kernels_of;
using device::KernelTable;
using elements::bfloat_of_float;
using elements::float_of_bfloat;
using elements::float_of_half;
using elements::half_of_float;

template <typename T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// The kernel of `table`, without the checks of the public functions.
void run(const KernelTable& table, DType dtype, ReduceOp op, std::byte* out, std::span<const std::byte* const> in,
         std::size_t count, double factor = 1.0) {
  table.reduce[static_cast<std::size_t>(dtype)][static_cast<std::size_t>(op)](
      {out, in.data(), in.size(), 0, count * size_of(dtype)}, factor);
}

/// acc op in for one list, at odd addresses.
template <typename T>
std::vector<T> reduce(const KernelTable& table, DType dtype, ReduceOp op, const std::vector<T>& a,
                      const std::vector<T>& b) {
  const std::size_t bytes = a.size() * sizeof(T);
  std::vector<std::byte> left(bytes + 1);
  std::vector<std::byte> right(bytes + 3);
  std::memcpy(left.data() + 1, a.data(), bytes);
  std::memcpy(right.data() + 3, b.data(), bytes);
  const std::byte* const in[2] = {left.data() + 1, right.data() + 3};
  run(table, dtype, op, left.data() + 1, in, a.size());
  std::vector<T> result(a.size());
  std::memcpy(result.data(), left.data() + 1, bytes);
  return result;
}

template <typename T>
std::vector<T> scale(const KernelTable& table, DType dtype, const std::vector<T>& values, double factor) {
  std::vector<T> result = values;
  auto* const data = reinterpret_cast<std::byte*>(result.data());
  const std::byte* const in[1] = {data};
  run(table, dtype, ReduceOp::kSum, data, in, values.size(), factor);
  return result;
}

using U16 = std::vector<std::uint16_t>;

class KernelsOfIsa : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    table_ = kernels_of(GetParam());
    if (table_ == nullptr) GTEST_SKIP() << "this processor has no " << GetParam();
  }
  const KernelTable* table_ = nullptr;
};
INSTANTIATE_TEST_SUITE_P(Isa, KernelsOfIsa,
                         ::testing::Values("portable", "avx2", "avx512", "avx512bf16", "avx512fp16"));

/// All 65536 patterns, against the compiler's own float16.
TEST_P(KernelsOfIsa, EveryFloat16IsReadAndWrittenExactly) {
  U16 all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  const U16 doubled = scale(*table_, DType::kFloat16, all, 2.0);
  const U16 halved = scale(*table_, DType::kFloat16, all, 0.5);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const float value = float_of_half(all[i]);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(float_of_half(doubled[i]))) << i;
      continue;
    }
    ASSERT_EQ(doubled[i], half_of_float(value * 2.0F)) << i;
    ASSERT_EQ(halved[i], half_of_float(value * 0.5F)) << i;
  }
}

TEST_P(KernelsOfIsa, EveryBfloat16IsRoundedToNearestEven) {
  U16 all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  const U16 scaled = scale(*table_, DType::kBfloat16, all, 1.0 / 3.0);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const float value = float_of_bfloat(all[i]);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(float_of_bfloat(scaled[i]))) << i;
      continue;
    }
    ASSERT_EQ(scaled[i], bfloat_of_float(value * static_cast<float>(1.0 / 3.0))) << i;
  }
}

TEST_P(KernelsOfIsa, RandomFloat16SumsAreRoundedFromFloat32) {
  std::mt19937 random(1);
  U16 a(10'007);
  U16 b(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<std::uint16_t>(random() & 0xbbff);  // finite
    b[i] = static_cast<std::uint16_t>(random() & 0xbbff);
  }
  const U16 half_sum = reduce(*table_, DType::kFloat16, ReduceOp::kSum, a, b);
  const U16 bfloat_sum = reduce(*table_, DType::kBfloat16, ReduceOp::kSum, a, b);
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(half_sum[i], half_of_float(float_of_half(a[i]) + float_of_half(b[i]))) << i;
    ASSERT_EQ(bfloat_sum[i], bfloat_of_float(float_of_bfloat(a[i]) + float_of_bfloat(b[i]))) << i;
  }
}

TEST_P(KernelsOfIsa, IntegersWrapAround) {
  using Bytes = std::vector<std::int8_t>;
  EXPECT_EQ(reduce(*table_, DType::kInt8, ReduceOp::kSum, Bytes{127, -128, 1}, Bytes{1, -1, 1}), (Bytes{-128, 127, 2}));
  using Shorts = std::vector<std::int16_t>;
  EXPECT_EQ(reduce(*table_, DType::kInt16, ReduceOp::kProduct, Shorts{-1, 256}, Shorts{-1, 256}), (Shorts{1, 0}));
  using Longs = std::vector<std::int64_t>;
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(reduce(*table_, DType::kInt64, ReduceOp::kSum, Longs{kMax}, Longs{1}), (Longs{-kMax - 1}));
}

TEST_P(KernelsOfIsa, BoolIsOrAndAnd) {
  using Flags = std::vector<std::uint8_t>;
  const Flags a{0, 0, 1, 1, 2};
  const Flags b{0, 1, 0, 1, 4};
  EXPECT_EQ(reduce(*table_, DType::kBool, ReduceOp::kSum, a, b), (Flags{0, 1, 1, 1, 1}));
  EXPECT_EQ(reduce(*table_, DType::kBool, ReduceOp::kMax, a, b), (Flags{0, 1, 1, 1, 1}));
  EXPECT_EQ(reduce(*table_, DType::kBool, ReduceOp::kProduct, a, b), (Flags{0, 0, 0, 1, 1}));
  EXPECT_EQ(reduce(*table_, DType::kBool, ReduceOp::kMin, a, b), (Flags{0, 0, 0, 1, 1}));
}

TEST_P(KernelsOfIsa, NanWinsInMinAndMax) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    const auto result =
        reduce(*table_, DType::kFloat32, op, std::vector<float>{nan, 1, nan, 4}, std::vector<float>{1, nan, nan, 4});
    EXPECT_TRUE(std::isnan(result[0]) && std::isnan(result[1]) && std::isnan(result[2]));
    EXPECT_EQ(result[3], 4);
    const U16 half = reduce(*table_, DType::kFloat16, op, U16{0x7e00, 0x3c00}, U16{0x3c00, 0x7e00});
    EXPECT_TRUE(std::isnan(float_of_half(half[0])) && std::isnan(float_of_half(half[1])));
    const U16 bfloat = reduce(*table_, DType::kBfloat16, op, U16{0x7fc0, 0x3f80}, U16{0x3f80, 0x7fff});
    EXPECT_TRUE(std::isnan(float_of_bfloat(bfloat[0])) && std::isnan(float_of_bfloat(bfloat[1])));
  }
}

TEST_P(KernelsOfIsa, IntegersAreScaledInDoubleAndTruncated) {
  using Ints = std::vector<std::int32_t>;
  constexpr std::int32_t kMax = std::numeric_limits<std::int32_t>::max();
  EXPECT_EQ(scale(*table_, DType::kInt32, Ints{7, -7, 0, kMax, -kMax}, 0.5), (Ints{3, -3, 0, kMax / 2, -(kMax / 2)}));
  EXPECT_EQ(scale(*table_, DType::kInt32, Ints{kMax, -kMax}, 2.0), (Ints{kMax, -kMax - 1}));
  using Longs = std::vector<std::int64_t>;
  constexpr std::int64_t kLong = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(scale(*table_, DType::kInt64, Longs{kLong, -kLong, 9, -9}, 1.5), (Longs{kLong, -kLong - 1, 13, -13}));
  using Small = std::vector<std::uint8_t>;
  EXPECT_EQ(scale(*table_, DType::kUint8, Small{255, 3, 1}, 1.5), (Small{255, 4, 1}));
}

// Every dtype and operation gives the same bits with every instruction set, also in the tail after whole vectors.
class DeviceAgreement : public ::testing::TestWithParam<std::tuple<const char*, int, ReduceOp, std::size_t>> {};
TEST_P(DeviceAgreement, WithThePortableKernels) {
  const auto [isa, dtype, op, count] = GetParam();
  const KernelTable* const table = kernels_of(isa);
  if (table == nullptr) GTEST_SKIP() << "this processor has no " << isa;
  const std::size_t width = size_of(static_cast<DType>(dtype));
  std::mt19937 random(7);
  std::vector<std::byte> a(count * width);
  std::vector<std::byte> b(count * width);
  // Exponents below the highest bit only: no NaN, whose payload the standard leaves open.
  for (std::byte& byte : a) byte = static_cast<std::byte>(random() & 0x3f);
  for (std::byte& byte : b) byte = static_cast<std::byte>(random() & 0x3f);
  std::vector<std::byte> expected = a;
  const std::byte* const expected_in[2] = {expected.data(), b.data()};
  const std::byte* const in[2] = {a.data(), b.data()};
  run(device::kPortableKernels, static_cast<DType>(dtype), op, expected.data(), expected_in, count);
  run(*table, static_cast<DType>(dtype), op, a.data(), in, count);
  EXPECT_TRUE(a == expected);
}
INSTANTIATE_TEST_SUITE_P(All, DeviceAgreement,
                         ::testing::Combine(::testing::Values("avx2", "avx512", "avx512bf16", "avx512fp16"),
                                            ::testing::Range(0, kReducedDTypeCount),
                                            ::testing::Values(ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax,
                                                              ReduceOp::kProduct),
                                            ::testing::Values(0, 1, 15, 1029)));

/// NaN, infinities and subnormals among them: the bits of the portable kernels, so that it does not matter which rank's
/// processor did the sum.
TEST_P(KernelsOfIsa, EveryPatternGivesTheBitsOfThePortableKernels) {
  // Each once, first those of a kind together and then, odd multiples, all kinds within one vector.
  U16 all(2 * 65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i < 65536 ? i : i * 40503);
  const U16 zeros(all.size(), 0x8000);
  for (const DType dtype : {DType::kFloat16, DType::kBfloat16}) {
    for (const double factor : {1.0, 0.5, 1.0 / 3.0}) {
      EXPECT_EQ(scale(*table_, dtype, all, factor), scale(device::kPortableKernels, dtype, all, factor));
    }
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      EXPECT_EQ(reduce(*table_, dtype, op, all, zeros), reduce(device::kPortableKernels, dtype, op, all, zeros));
    }
  }
}

/// Sums and means of two, of every kind of number with every kind: the smallest, the largest and what lies between.
TEST_P(KernelsOfIsa, EveryPairGivesTheBitsOfThePortableKernels) {
  U16 ones(2 * 65536);
  for (std::size_t i = 0; i < ones.size(); ++i) ones[i] = static_cast<std::uint16_t>(i);
  for (const DType dtype : {DType::kFloat16, DType::kBfloat16}) {
    for (const std::size_t step : {1, 3, 1025, 40503}) {
      U16 others(ones.size());
      for (std::size_t i = 0; i < ones.size(); ++i) others[i] = static_cast<std::uint16_t>((i ^ i >> 16) * step);
      const std::byte* const in[2] = {reinterpret_cast<const std::byte*>(ones.data()),
                                      reinterpret_cast<const std::byte*>(others.data())};
      for (const double factor : {1.0, 0.5, 0.25}) {
        U16 expected(ones.size());
        U16 result(ones.size());
        run(device::kPortableKernels, dtype, ReduceOp::kSum, reinterpret_cast<std::byte*>(expected.data()), in,
            ones.size(), factor);
        run(*table_, dtype, ReduceOp::kSum, reinterpret_cast<std::byte*>(result.data()), in, ones.size(), factor);
        for (std::size_t i = 0; i < ones.size(); ++i) {
          const auto is_nan = [dtype](std::uint16_t bits) {
            return std::isnan(dtype == DType::kFloat16 ? float_of_half(bits) : float_of_bfloat(bits));
          };
          if (is_nan(ones[i]) && is_nan(others[i])) continue;  // either may win
          ASSERT_EQ(result[i], expected[i]) << ones[i] << " and " << others[i] << ", times " << factor;
        }
      }
    }
  }
}

TEST(DeviceDispatch, RefusesWhatIsComposedAbove) {
  std::byte data[8]{};
  EXPECT_THROW(reduce_into(data, data + 4, 1, DType::kFloat32, ReduceOp::kAverage), InvariantError);
  EXPECT_THROW(scale_copy(data, data, 1, DType::kBool, 0.5), InvariantError);
  scale_copy(data, data + 4, 4, DType::kBool, 1.0);
}

TEST(DeviceDispatch, FactorOneIsAPlainCopy) {
  const std::vector<std::int64_t> values{(std::int64_t{1} << 53) + 1, -1};
  std::vector<std::int64_t> copy(2);
  scale_copy(reinterpret_cast<std::byte*>(copy.data()), reinterpret_cast<const std::byte*>(values.data()), 2,
             DType::kInt64, 1.0);
  EXPECT_EQ(copy, values);
  EXPECT_NE(kernels_of(kernel_isa()), nullptr);
}

}  // namespace
}  // namespace ringtune
