#include "collective/ring_schedule.h"

#include <gtest/gtest.h>

#include <tuple>

#include "base/error.h"
#include "collective/kind.h"

namespace ringtune {
namespace {

using Chunks = std::vector<ChunkRange>;

TEST(CollectiveSchedule, CutsLargeBuffersAtCacheLines) {
  EXPECT_EQ(cut_chunks(64 * 7, 4, 3), (Chunks{{0, 192}, {192, 128}, {320, 128}}));
  EXPECT_EQ(cut_chunks(64 * 6 + 12, 4, 3), (Chunks{{0, 128}, {128, 128}, {256, 140}}));
}

TEST(CollectiveSchedule, CutsSmallBuffersAtElements) {
  EXPECT_EQ(cut_chunks(20, 4, 3), (Chunks{{0, 8}, {8, 8}, {16, 4}}));
  EXPECT_EQ(cut_chunks(8, 8, 3), (Chunks{{0, 8}, {8, 0}, {8, 0}}));
  EXPECT_EQ(cut_chunks(0, 4, 2), (Chunks{{0, 0}, {0, 0}}));
}

TEST(CollectiveSchedule, RefusesATornElement) { EXPECT_THROW((void)cut_chunks(10, 4, 2), InvariantError); }

TEST(CollectiveSchedule, StepsOfThreeRanksAsATable) {
  constexpr auto kScatter = RingPhase::kReduceScatter;
  constexpr auto kGather = RingPhase::kAllgather;
  EXPECT_EQ(ring_steps(0, 3),
            (std::vector<RingStep>{{kScatter, 0, 2}, {kScatter, 2, 1}, {kGather, 1, 0}, {kGather, 0, 2}}));
  EXPECT_EQ(ring_steps(1, 3),
            (std::vector<RingStep>{{kScatter, 1, 0}, {kScatter, 0, 2}, {kGather, 2, 1}, {kGather, 1, 0}}));
  EXPECT_EQ(ring_steps(2, 3),
            (std::vector<RingStep>{{kScatter, 2, 1}, {kScatter, 1, 0}, {kGather, 0, 2}, {kGather, 2, 1}}));
}

TEST(CollectiveSchedule, NamesAreTheTimelines) {
  EXPECT_EQ(name_of(CollectiveKind::kAllreduce), "ALLREDUCE");
  EXPECT_EQ(name_of(CollectiveKind::kReducescatter), "REDUCESCATTER");
}

class CollectiveCut : public ::testing::TestWithParam<std::tuple<std::size_t, std::size_t, int>> {};

TEST_P(CollectiveCut, CoversTheBufferEvenly) {
  const auto [count, element, parts] = GetParam();
  const Chunks chunks = cut_chunks(count * element, element, parts);
  ASSERT_EQ(chunks.size(), static_cast<std::size_t>(parts));
  std::size_t end = 0;
  std::size_t least = count * element;
  std::size_t most = 0;
  for (const ChunkRange& chunk : chunks) {
    EXPECT_EQ(chunk.begin, end);
    EXPECT_EQ(chunk.size % element, 0U);
    end += chunk.size;
    least = std::min(least, chunk.size);
    most = std::max(most, chunk.size);
  }
  EXPECT_EQ(end, count * element);
  EXPECT_LE(most - least, 64U);
}
INSTANTIATE_TEST_SUITE_P(Sizes, CollectiveCut,
                         ::testing::Combine(::testing::Values(0, 1, 3, 63, 64, 1001, 262147),
                                            ::testing::Values(1, 2, 4, 8), ::testing::Values(1, 2, 3, 5, 8)));

class CollectiveSteps : public ::testing::TestWithParam<int> {};

TEST_P(CollectiveSteps, EachStepSendsWhatTheOneBeforeReceived) {
  const int size = GetParam();
  for (int rank = 0; rank < size; ++rank) {
    const auto mine = ring_steps(rank, size);
    const auto previous = ring_steps((rank + size - 1) % size, size);
    ASSERT_EQ(mine.size(), static_cast<std::size_t>(2 * (size - 1)));
    for (std::size_t k = 0; k < mine.size(); ++k) {
      EXPECT_EQ(mine[k].recv_chunk, previous[k].send_chunk);
      if (k == 0) continue;
      EXPECT_EQ(mine[k].send_chunk, mine[k - 1].recv_chunk);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Ranks, CollectiveSteps, ::testing::Range(1, 9));

}  // namespace
}  // namespace ringtune
