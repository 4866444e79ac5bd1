#include "collective/schedules.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"

namespace ringtune {
namespace {

using enum Fold;

TEST(Schedules, RecursiveDoublingOfFour) {
  EXPECT_EQ(recursive_doubling(2, 4, 10), (Schedule{{.sends = {{3, {0, 10}}}, .receives = {{3, {0, 10}, kAfter}}},
                                                    {.sends = {{0, {0, 10}}}, .receives = {{0, {0, 10}, kBefore}}}}));
}

TEST(Schedules, ThreeRanksFoldToTwo) {
  EXPECT_EQ(recursive_doubling(0, 3, 8), (Schedule{{.receives = {{1, {0, 8}, kAfter}}},
                                                   {.sends = {{2, {0, 8}}}, .receives = {{2, {0, 8}, kAfter}}},
                                                   {.sends = {{1, {0, 8}}}}}));
  EXPECT_EQ(recursive_doubling(1, 3, 8), (Schedule{{.sends = {{0, {0, 8}}}}, {.receives = {{0, {0, 8}, kCopy}}}}));
  EXPECT_EQ(recursive_doubling(2, 3, 8), (Schedule{{.sends = {{0, {0, 8}}}, .receives = {{0, {0, 8}, kBefore}}}}));
}

TEST(Schedules, HalvingDoublingOfFour) {
  EXPECT_EQ(halving_doubling(1, 4, 256, 4),
            (Schedule{{.sends = {{3, {128, 128}}}, .receives = {{3, {0, 128}, kAfter}}},
                      {.sends = {{0, {0, 64}}}, .receives = {{0, {64, 64}, kBefore}}},
                      {.sends = {{0, {64, 64}}}, .receives = {{0, {0, 64}, kCopy}}},
                      {.sends = {{3, {0, 128}}}, .receives = {{3, {128, 128}, kCopy}}}}));
}

TEST(Schedules, TreeOfFive) {
  EXPECT_EQ(binomial_tree(0, 5, 3), (Schedule{{.receives = {{1, {0, 3}, kAfter}}},
                                              {.receives = {{2, {0, 3}, kAfter}}},
                                              {.receives = {{4, {0, 3}, kAfter}}},
                                              {.sends = {{4, {0, 3}}}},
                                              {.sends = {{2, {0, 3}}}},
                                              {.sends = {{1, {0, 3}}}}}));
  EXPECT_EQ(binomial_tree(2, 5, 3), (Schedule{{.receives = {{3, {0, 3}, kAfter}}},
                                              {.sends = {{0, {0, 3}}}},
                                              {.receives = {{0, {0, 3}, kCopy}}},
                                              {.sends = {{3, {0, 3}}}}}));
  EXPECT_EQ(binomial_tree(4, 5, 3), (Schedule{{.sends = {{0, {0, 3}}}}, {.receives = {{0, {0, 3}, kCopy}}}}));
}

TEST(Schedules, DirectAllgatherBeginsWithAnotherRankEach) {
  EXPECT_EQ(
      direct_allgather(1, 3, 10),
      (Schedule{{.sends = {{2, {10, 10}}, {0, {10, 10}}}, .receives = {{0, {0, 10}, kCopy}, {2, {20, 10}, kCopy}}}}));
}

TEST(Schedules, OneRankHasNothingToDo) {
  EXPECT_TRUE(recursive_doubling(0, 1, 8).empty());
  EXPECT_TRUE(halving_doubling(0, 1, 8, 4).empty());
  EXPECT_TRUE(binomial_tree(0, 1, 8).empty());
  EXPECT_TRUE(direct_allgather(0, 1, 8).empty());
  EXPECT_THROW((void)recursive_doubling(2, 2, 8), InvariantError);
}

// Bytes of all messages from `from` to `to`, in order, by sender and by receiver.
std::vector<ChunkRange> sent(const Schedule& schedule, int to) {
  std::vector<ChunkRange> ranges;
  for (const Step& step : schedule) {
    for (const Send& send : step.sends) {
      if (send.peer == to) ranges.push_back(send.range);
    }
  }
  return ranges;
}
std::vector<ChunkRange> received(const Schedule& schedule, int from) {
  std::vector<ChunkRange> ranges;
  for (const Step& step : schedule) {
    for (const Receive& receive : step.receives) {
      if (receive.peer == from) ranges.push_back(receive.range);
    }
  }
  return ranges;
}

class EverySchedule : public ::testing::TestWithParam<int> {};
TEST_P(EverySchedule, WhatIsSentIsExpected) {
  const int size = GetParam();
  const auto check = [&](auto schedule_of) {
    for (int a = 0; a < size; ++a) {
      for (int b = 0; b < size; ++b) EXPECT_EQ(sent(schedule_of(a), b), received(schedule_of(b), a)) << a << b;
    }
  };
  check([&](int rank) { return recursive_doubling(rank, size, 1000); });
  check([&](int rank) { return halving_doubling(rank, size, 1000, 4); });
  check([&](int rank) { return halving_doubling(rank, size, 8, 4); });  // fewer elements than ranks
  check([&](int rank) { return binomial_tree(rank, size, 1000); });
  check([&](int rank) { return direct_allgather(rank, size, 40); });
}
INSTANTIATE_TEST_SUITE_P(Sizes, EverySchedule, ::testing::Range(1, 18));

TEST(Schedules, HalvingDoublingMovesTwiceTheBytesAtMost) {
  for (const int size : {2, 4, 8, 16}) {
    const Schedule schedule = halving_doubling(1, size, 64 << 10, 4);
    std::size_t bytes = 0;
    for (const Step& step : schedule) bytes += step.sends.front().range.size;
    EXPECT_EQ(bytes, std::size_t{2 * (64 << 10)} / static_cast<std::size_t>(size) * static_cast<std::size_t>(size - 1));
  }
}

}  // namespace
}  // namespace ringtune
