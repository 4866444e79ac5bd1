#include "device/low_rank_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace ringtune {
namespace {

std::vector<float> numbers(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> all(count);
  for (float& one : all) one = normal(random);
  return all;
}

double dot(const float* a, const float* b, std::size_t length) {
  double sum = 0;
  for (std::size_t i = 0; i < length; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

class Orthonormalise : public ::testing::TestWithParam<std::tuple<std::size_t, std::size_t>> {};
TEST_P(Orthonormalise, GivesUnitVectorsAtRightAngles) {
  const auto [rank, length] = GetParam();
  for (const float scale : {1.0F, 1e-12F, 1e12F}) {
    std::vector<float> vectors = numbers(rank * length, 3);
    for (float& one : vectors) one *= scale;
    orthonormalise(vectors.data(), rank, length);
    for (std::size_t a = 0; a < rank; ++a) {
      for (std::size_t b = 0; b <= a; ++b) {
        const double want = a == b ? 1.0 : 0.0;
        EXPECT_NEAR(dot(vectors.data() + a * length, vectors.data() + b * length, length), want, 2e-5);
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(All, Orthonormalise,
                         ::testing::Combine(::testing::Values(std::size_t{1}, 2, 4),
                                            ::testing::Values(std::size_t{8}, 1000)));

TEST(OrthonormaliseEdge, DependentAndEmptyVectorsBecomeZeroAndNanIsKept) {
  std::vector<float> vectors{3, 4, 6, 8, 0, 0};
  orthonormalise(vectors.data(), 3, 2);
  EXPECT_EQ(vectors, (std::vector<float>{0.6F, 0.8F, 0, 0, 0, 0}));
  std::vector<float> broken{1, std::nanf("")};
  orthonormalise(broken.data(), 1, 2);
  EXPECT_TRUE(std::isnan(broken[0]) && std::isnan(broken[1]));
}

class ApplyLowRank : public ::testing::TestWithParam<std::size_t> {};
TEST_P(ApplyLowRank, WritesTheProductAndTakesItFromTheError) {
  const std::size_t rank = GetParam();
  constexpr std::size_t kRows = 7;
  constexpr std::size_t kColumns = 131;
  const std::vector<float> left = numbers(rank * kRows, 1);
  const std::vector<float> right = numbers(rank * kColumns, 2);
  const std::vector<float> before = numbers(kRows * kColumns, 3);
  std::vector<float> error = before;
  std::vector<float> out(kRows * kColumns);
  std::vector<float> alone(kRows * kColumns);
  const LowRank factors{left.data(), right.data(), rank, kRows, kColumns};
  apply_low_rank(out.data(), error.data(), factors, 2.0F);
  apply_low_rank(alone.data(), nullptr, factors, 2.0F);
  EXPECT_EQ(out, alone);
  for (std::size_t i = 0; i < kRows; ++i) {
    for (std::size_t j = 0; j < kColumns; ++j) {
      float product = left[i] * right[j];  // in this order, each step rounded: the bits are part of the contract
      for (std::size_t k = 1; k < rank; ++k) {
        const float term = left[k * kRows + i] * right[k * kColumns + j];
        product += term;
      }
      const std::size_t at = i * kColumns + j;
      ASSERT_NEAR(out[at], product * 2.0F, 1e-5);
      ASSERT_EQ(error[at], before[at] - out[at] / 2.0F);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Ranks, ApplyLowRank, ::testing::Values(std::size_t{1}, 2, 4));

}  // namespace
}  // namespace ringtune
