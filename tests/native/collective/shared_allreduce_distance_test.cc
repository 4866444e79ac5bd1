#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <random>
#include <tuple>
#include <vector>

#include "collective/communicator.h"
#include "collective/shared_allreduce.h"
#include "shm_groups.h"

namespace ringtune {
namespace {

using testing_support::expect_reduced;
using testing_support::on_threads;
using testing_support::options_of;
using testing_support::ring_of;
using testing_support::run_shm_group;

constexpr std::array kDistances = {CoreLatency::kSameCore, CoreLatency::kSharedCache, CoreLatency::kApart};

// Where the members are decides how the slots are written, by whom, and where in them pieces lie; never what comes out.
class SharedAllreduceDistances : public ::testing::TestWithParam<std::tuple<int, CoreLatency, bool, DType>> {};
TEST_P(SharedAllreduceDistances, GiveTheSameResults) {
  const auto [members, distance, changes_owner, dtype] = GetParam();
  ShmGroupOptions options = options_of(80 << 10, 2);
  options.distance = distance;
  options.changes_owner = changes_owner;
  run_shm_group(members, options, [dtype = dtype, distance = distance](ShmGroup& shm_group, Fabric&) {
    // The same size often enough to come by all places of a slot; then sizes that overlap each other's places.
    for (std::uint64_t round = 1; round <= 24; ++round) expect_reduced(shm_group, 5'000, dtype, ReduceOp::kSum, round);
    EXPECT_EQ(shm_group.distance(), distance);
    std::mt19937 random(7);
    for (std::uint64_t round = 25; round <= 60; ++round) {
      expect_reduced(shm_group, random() % 50'000 + 1, dtype, ReduceOp::kSum, round);
    }
    for (const std::size_t count : {65'536, 70'001, 300'001, 5'000'000}) {
      expect_reduced(shm_group, count, dtype, ReduceOp::kMax, count);
    }
  });
}
INSTANTIATE_TEST_SUITE_P(All, SharedAllreduceDistances,
                         ::testing::Combine(::testing::Values(2, 3), ::testing::ValuesIn(kDistances), ::testing::Bool(),
                                            ::testing::Values(DType::kFloat32, DType::kBfloat16, DType::kUint8)));

TEST(SharedAllreduce, MembersThatMeasureDifferentDistancesDoWhatTheFirstOneSays) {
  for (const CoreLatency first : kDistances) {
    for (const CoreLatency second : kDistances) {
      const auto fabrics = make_inproc_fabrics(2, 64 << 10);
      on_threads(2, [&](int rank) {
        ShmGroupOptions options = options_of(80 << 10, 2);
        options.distance = rank == 0 ? first : second;
        Fabric& fabric = *fabrics[static_cast<std::size_t>(rank)];
        const auto shm_group = connect_shm_group(fabric, ring_of(fabric), all_ranks(2), options);
        for (std::uint64_t round = 1; round <= 12; ++round) {
          expect_reduced(*shm_group, 3'000 * round, DType::kFloat32, ReduceOp::kSum, round);
        }
        EXPECT_EQ(shm_group->distance(), first);
      });
    }
  }
}

class SharedAllreduceFactors : public ::testing::TestWithParam<std::tuple<CoreLatency, bool>> {};
TEST_P(SharedAllreduceFactors, AndScalesAtEveryDistance) {
  ShmGroupOptions options = options_of(64 << 10, 2);
  options.distance = std::get<0>(GetParam());
  options.changes_owner = std::get<1>(GetParam());
  run_shm_group(2, options, [](ShmGroup& shm_group, Fabric&) {
    for (const std::size_t count : {2'003, 40'007, 900'001}) {
      for (std::uint64_t round = 1; round <= 8; ++round) {
        std::vector<float> small(1'001, 3.0F);
        std::vector<float> large(count, 5.0F);
        std::vector<Fragment> fragments;
        for (auto* data : {&small, &large}) {
          auto* bytes = reinterpret_cast<std::byte*>(data->data());
          fragments.push_back({bytes, bytes, data->size(), data == &small ? 0.5 : 1.0, 2.0});
        }
        ASSERT_TRUE(shared_allreduce(shm_group, fragments,
                                     {round, DType::kFloat32, ReduceOp::kSum,
                                      round % 2 == 0 ? std::optional<DType>(DType::kBfloat16) : std::nullopt}));
        EXPECT_EQ(std::count(small.begin(), small.end(), 6.0F), 1'001);
        EXPECT_EQ(std::count(large.begin(), large.end(), 20.0F), static_cast<std::ptrdiff_t>(count));
      }
    }
  });
}
INSTANTIATE_TEST_SUITE_P(All, SharedAllreduceFactors,
                         ::testing::Combine(::testing::ValuesIn(kDistances), ::testing::Bool()));

// Members, and how long a wait looks: 0 where they take turns on cores.
class SharedAllreduceMeasures : public ::testing::TestWithParam<std::tuple<int, std::int64_t>> {};
TEST_P(SharedAllreduceMeasures, HowFarTheMembersAreTheSameForAllInEveryRound) {
  constexpr std::uint64_t kRounds = 300;
  const auto [members, spin_ns] = GetParam();
  ShmGroupOptions options = options_of(64 << 10, 2);
  options.spin_ns = spin_ns;
  std::vector<std::array<CoreLatency, kRounds>> seen(static_cast<std::size_t>(members));
  run_shm_group(members, options, [&seen](ShmGroup& shm_group, Fabric&) {
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      expect_reduced(shm_group, 4'000, DType::kFloat32, ReduceOp::kSum, round);
      seen[static_cast<std::size_t>(shm_group.position())][round - 1] = shm_group.distance();
    }
  });
  for (const auto& member : seen) EXPECT_EQ(member, seen.front());
  for (const CoreLatency distance : seen.front()) EXPECT_NE(name_of(distance), "unknown");
}
INSTANTIATE_TEST_SUITE_P(All, SharedAllreduceMeasures,
                         ::testing::Combine(::testing::Values(2, 3, 4), ::testing::Values(0, 50'000)));

}  // namespace
}  // namespace ringtune
