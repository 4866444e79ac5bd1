#include "device/sparse_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "base/error.h"

namespace ringtune {
namespace {

struct Picked {
  std::vector<std::int32_t> places;
  std::vector<float> values;
};

Picked pick(std::vector<float>& error, const std::vector<float>& gradient, std::size_t wanted) {
  Picked picked{std::vector<std::int32_t>(wanted + 1, -7), std::vector<float>(wanted + 1, -7)};
  pick_largest(error, gradient.data(), wanted, {picked.places.data(), picked.values.data()});
  EXPECT_EQ(picked.places.back(), -7) << "beyond the end";
  EXPECT_EQ(picked.values.back(), -7) << "beyond the end";
  picked.places.pop_back();
  picked.values.pop_back();
  return picked;
}

/// The places of the largest magnitudes by a stable sort: of equal ones the first, in ascending order of place.
std::vector<std::int32_t> largest(const std::vector<float>& sum, std::size_t wanted) {
  std::vector<std::int32_t> order(sum.size());
  std::iota(order.begin(), order.end(), 0);
  const auto at = [&](std::int32_t i) { return std::fabs(sum[static_cast<std::size_t>(i)]); };
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return at(a) > at(b); });
  order.resize(wanted);
  std::sort(order.begin(), order.end());
  return order;
}

// Elements; how many are picked; 0 = numbers that are all different, else how many different ones there are.
class PickLargest : public ::testing::TestWithParam<std::tuple<std::size_t, double, int>> {};

TEST_P(PickLargest, MovesExactlyTheLargestOutOfTheError) {
  const auto [count, ratio, distinct] = GetParam();
  const auto wanted = static_cast<std::size_t>(static_cast<double>(count) * ratio);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> few(-distinct, distinct);
  std::vector<float> error(count);
  std::vector<float> gradient(count);
  for (std::size_t i = 0; i < count; ++i) {
    error[i] = distinct == 0 ? normal(random) : static_cast<float>(few(random));
    gradient[i] = distinct == 0 ? normal(random) * 1e-3F : static_cast<float>(few(random));
  }
  std::vector<float> sum(count);
  for (std::size_t i = 0; i < count; ++i) sum[i] = error[i] + gradient[i];
  const Picked picked = pick(error, gradient, wanted);
  EXPECT_EQ(picked.places, largest(sum, wanted));
  std::vector<float> whole = error;
  for (std::size_t i = 0; i < wanted; ++i) {
    const auto place = static_cast<std::size_t>(picked.places[i]);
    EXPECT_EQ(error[place], 0.0F);
    whole[place] += picked.values[i];
  }
  EXPECT_EQ(whole, sum) << "picked and error together are what was added up, bit for bit";
}

INSTANTIATE_TEST_SUITE_P(All, PickLargest,
                         ::testing::Combine(::testing::Values(std::size_t{0}, 1, 3, 5, 1000, 65'537),
                                            ::testing::Values(0.0, 0.01, 0.5, 1.0), ::testing::Values(0, 1, 3)));

TEST(PickLargest, TakesWhatIsNotFiniteFirst) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> error(8, 1.0F);
  const std::vector<float> gradient{0, 5, -kInfinity, 0, std::nanf(""), 0, 9, 0};
  const Picked picked = pick(error, gradient, 3);
  EXPECT_EQ(picked.places, (std::vector<std::int32_t>{2, 4, 6}));
  EXPECT_EQ(picked.values[0], -kInfinity);
  EXPECT_TRUE(std::isnan(picked.values[1]));
  EXPECT_EQ(picked.values[2], 10.0F);
  EXPECT_EQ(error, (std::vector<float>{1, 6, 0, 1, 0, 1, 0, 1}));
}

TEST(AddSparse, AddsAndRefusesPlacesOutsideBeforeItWrites) {
  std::vector<float> out{1, 2, 3, 4};
  const std::vector<float> values{10, 20, 30};
  const std::vector<std::int32_t> places{0, 3, 3};
  add_sparse(out, places.data(), values, 0.5F);
  EXPECT_EQ(out, (std::vector<float>{6, 2, 3, 29}));
  for (const std::int32_t bad : {-1, 4}) {
    const std::vector<std::int32_t> wrong{0, bad, 1};
    EXPECT_THROW(add_sparse(out, wrong.data(), values, 1.0F), Protocol);
    EXPECT_EQ(out, (std::vector<float>{6, 2, 3, 29}));
  }
}

}  // namespace
}  // namespace ringtune
