#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>
#include <random>
#include <thread>
#include <tuple>
#include <vector>

#include "collective/shared_allreduce.h"
#include "repeats.h"
#include "shm_groups.h"

namespace ringtune {
namespace {

using testing_support::options_of;
using testing_support::repeats;
using testing_support::run_shm_group;

/// Small integers: exact in 16 bits too. With a factor or a cast, members read their own slots as well.
void expect_sum(ShmGroup& shm_group, std::size_t count, std::uint64_t token, double prescale,
                std::optional<DType> wire) {
  std::vector<float> data(count);
  for (std::size_t i = 0; i < count; ++i)
    data[i] = static_cast<float>((shm_group.position() + 1) * static_cast<int>(i % 13));
  auto* bytes = reinterpret_cast<std::byte*>(data.data());
  const Fragment fragment{bytes, bytes, count, prescale, 1.0 / prescale};
  ASSERT_TRUE(shared_allreduce(shm_group, {&fragment, 1}, {token, DType::kFloat32, ReduceOp::kSum, wire}));
  const int ranks = shm_group.size() * (shm_group.size() + 1) / 2;
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_EQ(data[i], static_cast<float>(ranks * static_cast<int>(i % 13))) << i << " of " << count;
  }
}

// Which slots a round uses depends on what the rounds before it were. Whatever they were and however late a member is,
// nobody writes where another still reads.
class SharedAllreduceSets : public ::testing::TestWithParam<std::tuple<int, CoreLatency, bool>> {};
TEST_P(SharedAllreduceSets, HoldInAnyOrderOfSizesAndVotes) {
  const auto [members, distance, changes_owner] = GetParam();
  ShmGroupOptions options = options_of(512 << 10, 4);
  options.distance = distance;
  options.changes_owner = changes_owner;
  run_shm_group(members, options, [members = members](ShmGroup& shm_group, Fabric&) {
    constexpr std::array<std::size_t, 7> kCounts = {100, 30'000, 40'000, 200'000, 524'288, 524'289, 1'500'000};
    std::mt19937 script(11);  // the same for all
    std::mt19937 pace(static_cast<unsigned>(shm_group.position()));
    for (std::uint64_t token = 1; token <= repeats(200, 4); ++token) {
      const std::size_t count = kCounts[script() % kCounts.size()];
      const bool is_against = script() % 6 == 0;
      const int dissenter = static_cast<int>(script() % static_cast<unsigned>(members));
      if (pace() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(pace() % 500));
      if (!is_against) {
        const bool casts = script() % 4 == 0;
        const double prescale = script() % 4 == 0 ? 0.5 : 1.0;
        expect_sum(shm_group, count, token, prescale, casts ? std::optional(DType::kBfloat16) : std::nullopt);
      } else if (shm_group.position() == dissenter) {
        shm_group.decline_round();
      } else {
        std::vector<float> data(count, 1.0F);
        auto* bytes = reinterpret_cast<std::byte*>(data.data());
        const Fragment fragment{bytes, bytes, count};
        EXPECT_FALSE(shared_allreduce(shm_group, {&fragment, 1}, {token, DType::kFloat32, ReduceOp::kSum}));
        EXPECT_EQ(std::count(data.begin(), data.end(), 1.0F), static_cast<std::ptrdiff_t>(count));
      }
      if (::testing::Test::HasFailure()) return;
    }
  });
}
INSTANTIATE_TEST_SUITE_P(All, SharedAllreduceSets,
                         ::testing::Combine(::testing::Values(2, 3, 4),
                                            ::testing::Values(CoreLatency::kSameCore, CoreLatency::kSharedCache,
                                                              CoreLatency::kApart),
                                            ::testing::Bool()));

TEST(SharedAllreduce, ALargeMessageWaitsForWhoeverStillReadsTheOneBefore) {
  constexpr std::size_t kPiece = 4096;
  constexpr std::size_t kMessage = 16 << 20;
  std::atomic<bool> early_waits{false};
  ShmGroupOptions options = options_of(kPiece, 2);
  options.stall_ns = 1'000'000;
  options.on_stall = [&](const std::vector<int>& missing, std::int64_t) {
    if (missing == std::vector<int>{1}) early_waits = true;
  };
  run_shm_group(2, options, [&](ShmGroup& shm_group, Fabric&) {
    const auto post = [&](std::uint64_t token) {
      shm_group.begin_round(token);
      shm_group.use_slots_for(kPiece, kMessage, SlotOwnership::kOwn);
      std::memset(shm_group.slot(shm_group.position(), 0), static_cast<int>(token), kPiece);
      shm_group.publish(ShmCounter::kPosted, 1);
      ASSERT_TRUE(shm_group.agreed(Deadline::never()).value());
    };
    post(1);
    const std::byte* const first = shm_group.slot(0, 0);
    while (shm_group.position() == 1 && !early_waits) std::this_thread::yield();  // the other has done all it can do
    EXPECT_EQ(std::count(first, first + kPiece, std::byte{1}), kPiece);
    shm_group.release_slots();
    post(2);
    EXPECT_EQ(shm_group.slot(0, 0), first);
    EXPECT_EQ(std::count(first, first + kPiece, std::byte{2}), kPiece);
    shm_group.release_slots();
  });
}

}  // namespace
}  // namespace ringtune
