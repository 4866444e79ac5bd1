// Ranks that have run out of data join: allreduces go on without them.
#include <gtest/gtest.h>

#include "base/error.h"
#include "control/simulation.h"

namespace ringtune {
namespace {

using testing_support::add_set;
using testing_support::allreduce;
using testing_support::executed;
using testing_support::failure;
using testing_support::in_set;
using testing_support::join;
using testing_support::Simulation;

TEST(Join, AllreduceGoesOnWithNeutralElements) {
  Simulation job(3);
  job.submit(1, join());
  job.settle();
  Request request = allreduce("a", {3});
  request.op = ReduceOp::kMin;
  for (int round = 0; round < 3; ++round) {
    for (const int rank : {0, 2}) job.submit(rank, request);
    job.settle();
    EXPECT_EQ(executed(job.take(0)), "a");
    const std::vector<Action> actions = job.take(1);
    ASSERT_EQ(actions.size(), 1u);
    const auto& batch = std::get<ExecuteAction>(actions[0]);
    ASSERT_EQ(batch.absent.size(), 1u);
    EXPECT_EQ(*batch.absent[0], request);
    EXPECT_TRUE(std::get<ExecuteAction>(job.take(2).at(0)).absent.empty());
  }
}

TEST(Join, EverybodyGetsTheLastRankAndTheStateIsClearAgain) {
  Simulation job(3);
  for (int round = 0; round < 2; ++round) {
    for (const int rank : {2, 0, 1}) {
      job.submit(rank, join());
      job.settle();
    }
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(job.take(rank), (std::vector<Action>{JoinAction{"join.noname", 1}}));
    job.submit(0, allreduce("a"));
    job.settle();
    EXPECT_TRUE(job.take(0).empty());
    for (const int rank : {1, 2}) job.submit(rank, allreduce("a"));
    job.settle();
    EXPECT_EQ(executed(job.take(1)), "a");
    job.forget();
  }
}

TEST(Join, HighestRankIsTheLastOfThoseThatArriveTogether) {
  Simulation job(4);
  for (const int rank : {3, 1, 2}) {
    job.submit(rank, join());
    job.turn(rank);
  }
  job.submit(0, join());
  job.settle();
  EXPECT_EQ(job.take(0), (std::vector<Action>{JoinAction{"join.noname", 3}}));
}

TEST(Join, TensorsAnnouncedBeforeItTakePartWithTheirOwnValues) {
  Simulation job(2);
  job.submit(1, allreduce("own"));
  job.submit(1, join());
  job.settle();
  job.submit(0, allreduce("own"));
  job.submit(0, allreduce("neutral"));
  job.settle();
  const std::vector<Action> actions = job.take(1);
  EXPECT_EQ(executed(actions), "own|neutral");
  EXPECT_TRUE(std::get<ExecuteAction>(actions[0]).absent.empty());
  EXPECT_EQ(std::get<ExecuteAction>(actions[1]).absent.size(), 1u);
}

TEST(Join, CompletesWhatOnlyTheJoinerLacked) {
  Simulation job(2);
  job.submit(0, allreduce("a"));
  job.settle();
  job.submit(1, join());
  job.settle();
  EXPECT_EQ(executed(job.take(0)), "a");
}

TEST(Join, NumbersToldWhileItWasAwayAreLearntLater) {
  Simulation job(3);
  job.submit_everywhere(allreduce("old"));
  job.settle();
  job.submit(2, join());
  job.settle();
  for (int round = 0; round < 2; ++round) {
    for (const int rank : {0, 1}) {
      job.submit(rank, allreduce("old"));
      job.submit(rank, allreduce("new"));
    }
    job.settle();
  }
  for (const int rank : {0, 1}) job.submit(rank, join());
  job.settle();
  job.forget();
  for (int round = 0; round < 3; ++round) {
    job.submit_everywhere(allreduce("new"));
    job.submit_everywhere(allreduce("old"));
    job.settle();
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(executed(job.take(rank)).size(), 7u) << rank;
  }
}

TEST(Join, GroupsGoOn) {
  Simulation job(2);
  Request first = allreduce("a");
  Request second = allreduce("b");
  for (Request* request : {&first, &second}) {
    request->group = "g";
    request->group_size = 2;
  }
  job.submit(1, join());
  job.submit(0, first);
  job.settle();
  EXPECT_EQ(executed(job.take(1)), "");
  job.submit(0, second);
  job.settle();
  EXPECT_EQ(executed(job.take(1)), "a b");
}

class NotAfterJoin : public testing::TestWithParam<CollectiveKind> {};
TEST_P(NotAfterJoin, FailsOnTheOthersAndTheJobGoesOn) {
  Simulation job(3);
  Request request = allreduce("t");
  request.kind = GetParam();
  job.submit(0, request);  // before the join
  job.settle();
  job.submit(2, join());
  job.settle();
  job.submit(1, request);  // after it
  job.settle();
  const std::string message = std::string(name_of(GetParam())) +
                              " is not supported with Join at this time: tensor 't' needs rank 2, which has joined. "
                              "After join() only allreduce of the global process set goes on.";
  EXPECT_EQ(failure(job.take(0)), message);
  EXPECT_EQ(failure(job.take(1)), message);
  EXPECT_TRUE(job.take(2).empty());
  for (const int rank : {0, 1}) job.submit(rank, join());
  job.settle();
  job.forget();
  job.submit_everywhere(request);
  job.settle();
  EXPECT_EQ(executed(job.take(2)), "t");
}
INSTANTIATE_TEST_SUITE_P(Kinds, NotAfterJoin,
                         testing::Values(CollectiveKind::kAllgather, CollectiveKind::kBroadcast,
                                         CollectiveKind::kBarrier, CollectiveKind::kAlltoall,
                                         CollectiveKind::kReducescatter));

TEST(Join, ProcessSetWithAJoinedMemberFailsOthersGoOn) {
  Simulation job(4);
  job.submit_everywhere(add_set({0, 1}, "add.1"));
  job.submit_everywhere(add_set({1, 2}, "add.2"));
  job.settle();
  job.submit(2, join());
  job.settle();
  job.forget();
  for (const int rank : {0, 1}) job.submit(rank, in_set(1, allreduce("a")));
  job.submit(1, in_set(2, allreduce("a")));
  job.settle();
  EXPECT_EQ(executed(job.take(0)), "a");
  EXPECT_EQ(failure(job.take(1)),
            "ALLREDUCE in a process set is not supported with Join at this time: tensor 'a' needs rank 2, which has "
            "joined. After join() only allreduce of the global process set goes on.");
}

TEST(Join, LeaverFailsItOnTheJoined) {
  Simulation job(3);
  job.submit(1, join());
  job.settle();
  job.at(2).leave();
  job.settle();
  EXPECT_EQ(failure(job.take(1)),
            "tensor 'join.noname' (join) cannot complete: rank 2 has shut down. All ranks must run the "
            "same collectives before shutdown().");
  job.submit(0, join());
  job.settle();
  EXPECT_NE(failure(job.take(0)), "");
}

TEST(Join, NobodyIsWarnedOfRanksThatHaveJoined) {
  Simulation job(3, Simulation::immediate(), {10, 0});
  job.submit(1, join());
  job.submit(0, allreduce("a"));
  job.settle();
  job.now_ns += 10;
  job.settle();
  EXPECT_EQ(job.take(0), (std::vector<Action>{StallAction{"a", {2}, 10, 0, "'a' (allreduce)"}}));
}

TEST(Join, TwiceIsAProtocolError) {
  Simulation job(3);
  WorkerNews message;
  message.requests = {{std::make_shared<const Request>(join()), RankSet::one(1)}};
  job.at(0).peer_message(1, message, 1, 0);
  EXPECT_THROW(job.at(0).peer_message(1, message, 1, 0), Protocol);
}

}  // namespace
}  // namespace ringtune
