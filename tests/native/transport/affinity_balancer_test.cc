#include "transport/affinity_balancer.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace ringtune {
namespace {

using Cores = std::vector<int>;

CoreSet first_cores(std::size_t count) {
  CoreSet cores;
  for (std::size_t core = 0; core < count; ++core) cores.set(core);
  return cores;
}

std::optional<int> roomier(const Cores& cores, int position, std::size_t usable = 2) {
  return roomier_core(cores, position, [&] { return first_cores(usable); });
}

TEST(RoomierCore, TheLastOfTheCrowdGoes) {
  EXPECT_EQ(roomier({0, 0, 0, 1}, 2), 1);
  for (const int stays : {0, 1, 3}) EXPECT_EQ(roomier({0, 0, 0, 1}, stays), std::nullopt) << stays;
  EXPECT_EQ(roomier({1, 0, 1, 1}, 3), 0);
  EXPECT_EQ(roomier({0, 0, 0, 0}, 3), 1);
}

TEST(RoomierCore, NobodyGoesWhereNothingWouldBecomeEven) {
  for (int position = 0; position < 4; ++position) EXPECT_EQ(roomier({0, 1, 0, 1}, position), std::nullopt);
  for (int position = 0; position < 3; ++position) EXPECT_EQ(roomier({0, 1, 0}, position), std::nullopt);
}

TEST(RoomierCore, TheEmptiestIsTaken) {
  EXPECT_EQ(roomier({0, 0, 0, 1, 1, 2}, 2, 4), 3);
  EXPECT_EQ(roomier({0, 0, 0, 0, 1, 2, 2, 3}, 3, 4), 1);
}

TEST(RoomierCore, OnlyCoresThatItMayUse) {
  EXPECT_EQ(roomier({0, 0, 0, 1}, 2, 1), std::nullopt);
  EXPECT_EQ(roomier_core(Cores{0, 0, 0, 1}, 2, [] { return CoreSet(); }), std::nullopt);
}

TEST(RoomierCore, WhoHasNotBeenSeenDoesNotCount) {
  EXPECT_EQ(roomier({0, -1, -1, -1}, 0), std::nullopt);
  EXPECT_EQ(roomier({-1, -1, -1, -1}, 3), std::nullopt);
  EXPECT_EQ(roomier({-1, -1, 0, 0}, 3), 1);
}

/// Looks as often as it may, at what it is told.
struct Watch {
  std::optional<int> look(const Cores& cores) {
    now_ns += AffinityBalancer::kLookNs;
    EXPECT_TRUE(spread.due(now_ns));
    const auto core = spread.look(now_ns, cores, 2, [] { return first_cores(2); });
    EXPECT_FALSE(spread.due(now_ns + AffinityBalancer::kLookNs - 1));
    return core;
  }
  /// Looks until it is to go.
  int looks_until_move(const Cores& cores) {
    int looks = 1;
    while (!look(cores)) ++looks;
    return looks;
  }
  AffinityBalancer spread;
  std::int64_t now_ns = 1'000'000'000;
};
const Cores kUneven{0, 0, 0, 1};
const Cores kEven{0, 0, 1, 1};

TEST(AffinityBalancer, GoesByWhatItHasSeenTwice) {
  Watch watch;
  EXPECT_EQ(watch.look(kUneven), std::nullopt);
  EXPECT_EQ(watch.look(kEven), std::nullopt);
  EXPECT_EQ(watch.look(kUneven), std::nullopt);
  EXPECT_EQ(watch.look(kUneven), 1);
}

TEST(AffinityBalancer, MovesThatAreUndoneBecomeRarer) {
  Watch watch;
  EXPECT_EQ(watch.looks_until_move(kUneven), 2);
  for (std::int64_t pause = AffinityBalancer::kLeastPauseNs; pause < AffinityBalancer::kMostPauseNs; pause *= 2) {
    EXPECT_EQ(watch.looks_until_move(kUneven), pause / AffinityBalancer::kLookNs);
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(watch.looks_until_move(kUneven), AffinityBalancer::kMostPauseNs / AffinityBalancer::kLookNs);
  }
}

TEST(AffinityBalancer, AMoveThatLastedCostsNoHoldOff) {
  Watch watch;
  for (int i = 0; i < 5; ++i) (void)watch.looks_until_move(kUneven);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(watch.look(kEven), std::nullopt);
  EXPECT_EQ(watch.looks_until_move(kUneven), 2);
}

TEST(AffinityBalancer, TheThreadGoesThereAndMayGoOn) {
  std::thread([] {
    const CoreSet before = usable_cores();
    for (std::size_t core = 0; core < before.size(); ++core) {
      if (!before[core]) continue;
      go_to_core(static_cast<int>(core));
      EXPECT_EQ(usable_cores(), before);
    }
    EXPECT_GE(current_core(), 0);
    EXPECT_TRUE(before[static_cast<std::size_t>(current_core())]);
    go_to_core(CPU_SETSIZE - 1);  // one that is not there: nothing happens
    EXPECT_EQ(usable_cores(), before);
  }).join();
}

}  // namespace
}  // namespace ringtune
