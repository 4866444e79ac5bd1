#include "collective/device_ring_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <stdexcept>
#include <string>

namespace ringtune {
namespace {

/// Which ranks' bytes are in a place, in the order in which they were put together.
using Cell = std::string;

/// All ranks' plans in a random order that keeps to the counts. Every byte of a buffer is a cell.
std::vector<std::vector<Cell>> play(const std::vector<DeviceRingPlan>& plans, std::vector<std::vector<Cell>> buffers,
                                    unsigned seed) {
  std::mt19937 engine(seed);
  const std::size_t size = plans.size();
  std::vector<std::uint32_t> counts(size);
  std::vector<std::size_t> at(size, 0);
  for (std::size_t rank = 0; rank < size; ++rank) counts[rank] = plans[rank].steps.empty() ? plans[rank].total : 1;
  while (true) {
    std::vector<std::size_t> ready;
    bool over = true;
    for (std::size_t rank = 0; rank < size; ++rank) {
      if (at[rank] == plans[rank].steps.size()) continue;
      over = false;
      if (counts[(rank + size - 1) % size] >= plans[rank].steps[at[rank]].needs) ready.push_back(rank);
    }
    if (over) return buffers;
    if (ready.empty()) throw std::runtime_error("all ranks wait for each other");
    const std::size_t rank = ready[engine() % ready.size()];
    const DeviceRingStep& step = plans[rank].steps[at[rank]++];
    const std::vector<Cell>& from = buffers[(rank + size - 1) % size];
    for (std::size_t i = step.begin; i < step.begin + step.bytes; ++i) {
      buffers[rank][i] = step.reduces ? from[i] + buffers[rank][i] : from[i];
    }
    counts[rank] = step.done;
  }
}

Cell letter(std::size_t rank) { return Cell(1, static_cast<char>('a' + rank)); }

TEST(DeviceRingSchedule, OfTwoRanksIsATable) {
  const DeviceRingPlan plan = device_allreduce_plan({0, 2, 64}, 192, 4);
  EXPECT_EQ(plan.total, 5U);
  const std::vector<DeviceRingStep> expected{
      {128, 64, true, 1, 2}, {192, 0, true, 1, 3}, {0, 64, false, 2, 4}, {64, 64, false, 3, 5}};
  const std::vector<DeviceRingStep> other{
      {0, 64, true, 1, 2}, {64, 64, true, 1, 3}, {128, 64, false, 2, 4}, {192, 0, false, 3, 5}};
  EXPECT_EQ(plan.steps, expected);
  EXPECT_EQ(device_allreduce_plan({1, 2, 64}, 192, 4).steps, other);
}

TEST(DeviceRingSchedule, AnAllreduceGivesEveryRankTheSameSumOfAll) {
  for (int size = 2; size <= 8; ++size) {
    for (const std::size_t bytes : {std::size_t{4}, std::size_t{640}, std::size_t{2052}}) {
      std::vector<DeviceRingPlan> plans;
      std::vector<std::vector<Cell>> buffers;
      for (int rank = 0; rank < size; ++rank) {
        plans.push_back(device_allreduce_plan({rank, size, 64}, bytes, 4));
        buffers.emplace_back(bytes, letter(static_cast<std::size_t>(rank)));
        EXPECT_EQ(plans.back().total, plans.front().total);
      }
      for (unsigned seed = 0; seed < 20; ++seed) {
        const auto after = play(plans, buffers, seed);
        for (std::size_t i = 0; i < bytes; ++i) {
          for (const std::vector<Cell>& buffer : after) ASSERT_EQ(buffer[i], after[0][i]) << "byte " << i;
          Cell sorted = after[0][i];
          std::sort(sorted.begin(), sorted.end());
          ASSERT_EQ(sorted, Cell("abcdefgh").substr(0, static_cast<std::size_t>(size)));
        }
      }
    }
  }
}

TEST(DeviceRingSchedule, AnAllgatherGivesEveryRankAllBlocks) {
  const std::vector<std::size_t> blocks{100, 0, 1000, 7};
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::vector<DeviceRingPlan> plans;
    std::vector<std::vector<Cell>> buffers(4, std::vector<Cell>(1107, "-"));
    std::vector<Cell> expected;
    for (int rank = 0; rank < 4; ++rank) {
      const auto block = static_cast<std::size_t>(rank);
      plans.push_back(device_allgather_plan({rank, 4, 64}, blocks));
      std::fill_n(buffers[block].begin() + static_cast<std::ptrdiff_t>(expected.size()), blocks[block], letter(block));
      expected.insert(expected.end(), blocks[block], letter(block));
    }
    for (const auto& buffer : play(plans, buffers, seed)) EXPECT_EQ(buffer, expected);
  }
}

TEST(DeviceRingSchedule, ABroadcastGoesDownTheRing) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::vector<DeviceRingPlan> plans;
    std::vector<std::vector<Cell>> buffers;
    for (int rank = 0; rank < 4; ++rank) {
      plans.push_back(device_broadcast_plan({rank, 4, 64}, 1000, 2));
      buffers.emplace_back(1000, letter(static_cast<std::size_t>(rank)));
      EXPECT_EQ(plans.back().total, 17U);
    }
    EXPECT_TRUE(plans[2].steps.empty());
    for (const auto& buffer : play(plans, buffers, seed)) EXPECT_EQ(buffer, std::vector<Cell>(1000, "c"));
  }
}

}  // namespace
}  // namespace ringtune
