// Process sets over every kind of link: disjoint, overlapping, of one rank.
#include "collective/communicator.h"

#include <gtest/gtest.h>

#include <latch>

#include "../transport/fabrics.h"
#include "base/error.h"
#include "collective/collectives.h"
#include "numbers.h"
#include "ranks.h"

namespace ringtune::testing_support {
namespace {

CommunicatorOptions options_of(const std::string& prefix) {
  return {.prefix = prefix, .connect_timeout_ns = 20'000'000'000, .idle_timeout_ns = 20'000'000'000};
}

void expect_sum(Communicator& communicator) {
  Buffer data = input_of(communicator.rank(), 1003, DType::kInt32, ReduceOp::kSum);
  ring_allreduce(communicator.ring(), data, DType::kInt32, ReduceOp::kSum, {});
  EXPECT_TRUE(data == reduced_of(communicator.size(), 1003, DType::kInt32, ReduceOp::kSum));
  ring_barrier(communicator.ring());
}

class CommunicatorSets : public ::testing::TestWithParam<std::string> {};

TEST_P(CommunicatorSets, DisjointAndOverlappingOnesWorkSideBySide) {
  const std::vector<std::vector<int>> sets = {{0, 1, 2, 3}, {0, 2}, {1, 3}, {1, 2, 3}, {2}};
  Joined world = join(GetParam(), 4);
  on_threads(4, [&](int rank) {
    std::vector<std::unique_ptr<Communicator>> mine;
    for (std::size_t i = 0; i < sets.size(); ++i) {
      if (std::find(sets[i].begin(), sets[i].end(), rank) == sets[i].end()) continue;
      mine.push_back(std::make_unique<Communicator>(world[static_cast<std::size_t>(rank)], sets[i],
                                                    options_of("set" + std::to_string(i) + ".")));
    }
    for (int round = 0; round < 3; ++round) {
      for (const auto& communicator : mine) expect_sum(*communicator);
    }
  });
}

// At the start of a job nobody watches the ranks yet.
TEST_P(CommunicatorSets, ARankThatStandsStillWhereAllShareMemoryIsNotWaitedForEver) {
  Joined world = join(GetParam(), 3);
  std::latch given_up(2);
  on_threads(3, [&](int rank) {
    const CommunicatorOptions options{.connect_timeout_ns = 3'000'000'000, .idle_timeout_ns = 0};
    Communicator communicator(world[static_cast<std::size_t>(rank)], {0, 1, 2}, options);
    (void)communicator.ring();
    if (rank == 2) return given_up.wait();
    EXPECT_THROW((void)communicator.shm_group(), Timeout);
    given_up.count_down();
  });
}

INSTANTIATE_TEST_SUITE_P(Links, CommunicatorSets, ::testing::Values("inproc", "shm", "tcp"),
                         [](const auto& it) { return it.param; });

TEST(Communicator, KnowsThePlacesOfItsMembers) {
  Joined world = join("inproc", 3);
  const Communicator communicator(world[2], {0, 2}, options_of(""));
  EXPECT_EQ(communicator.rank(), 1);
  EXPECT_EQ(communicator.size(), 2);
  EXPECT_EQ(communicator.position_of(0), 0);
  EXPECT_EQ(communicator.position_of(2), 1);
  EXPECT_EQ(communicator.position_of(1), -1);
}

TEST(Communicator, RefusesARankThatIsNoMember) {
  Joined world = join("inproc", 2);
  EXPECT_THROW(Communicator(world[1], {0}, options_of("")), InvariantError);
}

}  // namespace
}  // namespace ringtune::testing_support
