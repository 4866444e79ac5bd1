#include "control/negotiator.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "control/simulation.h"

namespace ringtune {
namespace {

using testing_support::allreduce;
using testing_support::executed;
using testing_support::Simulation;

constexpr std::int64_t kMillisecond = 1'000'000;

class NegotiatorAtSize : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, NegotiatorAtSize, testing::Values(1, 2, 3, 5, 64));

TEST_P(NegotiatorAtSize, RunsWhatAllRanksHaveAndInTheSameOrder) {
  Simulation job(GetParam());
  for (int rank = 0; rank < job.size(); ++rank) {
    job.submit(rank, allreduce(rank % 2 == 0 ? "a" : "b"));  // ranks differ in their order
    job.submit(rank, allreduce(rank % 2 == 0 ? "b" : "a"));
  }
  job.settle();
  const std::vector<Action> first = job.take(0);
  ASSERT_EQ(first.size(), 1u);
  for (int rank = 1; rank < job.size(); ++rank) EXPECT_EQ(job.take(rank), first);
}

TEST_P(NegotiatorAtSize, WaitsForTheLastRank) {
  Simulation job(GetParam() + 1);
  for (int rank = 1; rank < job.size(); ++rank) job.submit(rank, allreduce("a"));
  job.settle();
  EXPECT_TRUE(job.take(0).empty());
  job.submit(0, allreduce("a"));
  job.settle();
  EXPECT_EQ(executed(job.take(job.size() - 1)), "a");
}

TEST_P(NegotiatorAtSize, SecondRoundSendsNumbersOnly) {
  Simulation job(GetParam());
  job.submit_everywhere(allreduce("a_rather_long_name_of_a_tensor"));
  job.settle();
  const std::uint64_t first = job.at(0).counters().bytes;
  for (int rank = 0; rank < job.size(); ++rank) (void)job.take(rank);
  job.submit_everywhere(allreduce("a_rather_long_name_of_a_tensor"));
  job.settle();
  EXPECT_EQ(executed(job.take(job.size() - 1)), "a_rather_long_name_of_a_tensor");
  EXPECT_LE(job.at(0).counters().bytes - first, first / 2);
}

TEST_P(NegotiatorAtSize, KnobsSwitchBetweenTheSameBatches) {
  Simulation job(GetParam());
  job.submit_everywhere(allreduce("before"));
  job.settle();
  Knobs knobs = Simulation::immediate();
  knobs.fusion_bytes = 0;
  EXPECT_EQ(job.at(0).propose(knobs), 1u);
  job.submit_everywhere(allreduce("x"));
  job.submit_everywhere(allreduce("y"));
  job.settle();
  const std::vector<Action> expected{ExecuteAction{1, {"before"}, {}, 0, {}}, ApplyKnobsAction{1, knobs},
                                     ExecuteAction{2, {"x"}, {}, 0, {}}, ExecuteAction{3, {"y"}, {}, 0, {}}};
  for (int rank = 0; rank < job.size(); ++rank) EXPECT_EQ(job.take(rank), expected);
}

TEST(Negotiator, MismatchFailsOnEveryRankAndTheJobGoesOn) {
  Simulation job(3);
  job.submit(0, allreduce("a", {2}));
  job.submit(1, allreduce("a", {2}));
  job.submit(2, allreduce("a", {3}));
  job.submit_everywhere(allreduce("b"));
  job.settle();
  const FailAction failure{
      FailureKind::kMismatch, "a",
      "Mismatched ALLREDUCE tensor shapes: One rank had shape [2], but another rank had shape [3]. "
      "Tensor 'a': shape [2] on ranks 0, 1; shape [3] on rank 2. Submit the same shape on every "
      "rank."};
  for (int rank = 0; rank < 3; ++rank) {
    const std::vector<Action> actions = job.take(rank);
    ASSERT_EQ(actions.size(), 2u);
    EXPECT_NE(std::find(actions.begin(), actions.end(), Action{failure}), actions.end());
    EXPECT_EQ(executed(actions), "b");
  }
  job.submit_everywhere(allreduce("a", {2}));
  job.settle();
  EXPECT_EQ(executed(job.take(1)), "a");
}

TEST(Negotiator, CachedNameWithAnotherShapeOnOneRankIsAMismatch) {
  Simulation job(2);
  job.submit_everywhere(allreduce("a", {2}));
  job.settle();
  (void)job.take(0);
  (void)job.take(1);
  job.submit(0, allreduce("a", {2}));
  job.submit(1, allreduce("a", {5}));
  job.settle();
  ASSERT_TRUE(std::holds_alternative<FailAction>(job.take(0).at(0)));
  ASSERT_TRUE(std::holds_alternative<FailAction>(job.take(1).at(0)));
  job.submit_everywhere(allreduce("a", {2}));
  job.settle();
  EXPECT_EQ(executed(job.take(1)), "a");
}

TEST(Negotiator, CachedNameWithANewShapeOnAllRanksRuns) {
  Simulation job(2);
  job.submit_everywhere(allreduce("a", {2}));
  job.settle();
  job.submit_everywhere(allreduce("a", {7}));
  job.settle();
  job.submit_everywhere(allreduce("a", {7}));
  job.settle();
  EXPECT_EQ(executed(job.take(1)), "a|a|a");
}

TEST(Negotiator, AllgatherCarriesTheRowsOfAllRanksAlsoFromTheCache) {
  Simulation job(3);
  for (int round = 0; round < 2; ++round) {
    for (int rank = 0; rank < 3; ++rank) {
      Request request = allreduce("g", {rank + 1, 2});
      request.kind = CollectiveKind::kAllgather;
      job.submit(rank, request);
    }
    job.settle();
    for (int rank = 0; rank < 3; ++rank) {
      const std::vector<Action> actions = job.take(rank);
      ASSERT_EQ(actions.size(), 1u);
      EXPECT_EQ(std::get<ExecuteAction>(actions[0]).rows, (std::vector<std::int64_t>{1, 2, 3})) << round;
    }
  }
}

TEST(Negotiator, GroupRunsOnlyWhenAllMembersAreReadyEverywhere) {
  Simulation job(2);
  Request first = allreduce("a");
  Request second = allreduce("b");
  for (Request* request : {&first, &second}) {
    request->group = "g";
    request->group_size = 2;
  }
  job.submit_everywhere(first);
  job.submit(0, second);
  job.submit_everywhere(allreduce("free"));
  job.settle();
  EXPECT_EQ(executed(job.take(1)), "free");
  job.submit(1, second);
  job.settle();
  EXPECT_EQ(executed(job.take(1)), "a b");
}

TEST(Negotiator, FailedMemberFailsItsWholeGroup) {
  Simulation job(2);
  Request first = allreduce("a");
  Request second = allreduce("b", {1});
  for (Request* request : {&first, &second}) {
    request->group = "g";
    request->group_size = 2;
  }
  job.submit_everywhere(first);
  job.submit(0, second);
  second.shape = {2};
  job.submit(1, second);
  job.settle();
  const std::vector<Action> actions = job.take(1);
  ASSERT_EQ(actions.size(), 2u);
  for (const Action& action : actions) EXPECT_TRUE(std::holds_alternative<FailAction>(action));
  job.submit_everywhere(first);  // the group can be tried again
  job.submit_everywhere(second);
  job.settle();
  EXPECT_EQ(executed(job.take(0)), "a b");
}

TEST(Negotiator, EvictionKeepsTheRanksInStep) {
  Knobs knobs = Simulation::immediate();
  knobs.cache_capacity = 2;
  Simulation job(2, knobs);
  std::string expected;
  for (int round = 0; round < 20; ++round) {
    const std::string name = "t" + std::to_string(round % 5);
    job.submit(0, allreduce(name));
    job.submit(1, allreduce(name));
    job.settle();
    expected += (round > 0 ? "|" : "") + name;
  }
  EXPECT_EQ(executed(job.take(0)), expected);
  EXPECT_EQ(executed(job.take(1)), expected);
}

TEST(Negotiator, NumberEvictedWhileOnItsWayStillCounts) {
  Knobs knobs = Simulation::immediate();
  knobs.cache_capacity = 1;
  Simulation job(2, knobs);
  job.submit_everywhere(allreduce("old"));
  job.settle();
  (void)job.take(0);
  (void)job.take(1);
  job.submit(1, allreduce("old"));
  job.submit(1, allreduce("new"));
  job.submit(0, allreduce("new"));
  job.turn(1);   // "old" leaves by number ...
  job.settle();  // ... "new" pushes it out of the cache
  job.submit(0, allreduce("old"));
  job.settle();
  EXPECT_EQ(executed(job.take(1)), "new|old");
}

TEST(Negotiator, HoldsABundleBackForTheCycleTime) {
  Knobs knobs = Simulation::immediate();
  knobs.cycle_time_ns = kMillisecond;
  Simulation job(2, knobs);
  job.submit_everywhere(allreduce("a"));
  job.settle();
  job.now_ns += kMillisecond / 2;
  job.submit_everywhere(allreduce("b"));
  job.settle();
  EXPECT_EQ(executed(job.take(0)), "");
  EXPECT_EQ(job.at(1).next_wake_ns(), job.now_ns + kMillisecond / 2);
  job.now_ns += kMillisecond / 2;
  job.settle();
  EXPECT_EQ(executed(job.take(0)), "a b");
}

TEST(Negotiator, FullBufferIsNotHeldBack) {
  Knobs knobs = Simulation::immediate();
  knobs.cycle_time_ns = kMillisecond;
  knobs.fusion_bytes = 16;
  Simulation job(2, knobs);
  job.submit_everywhere(allreduce("a", {4}));
  job.settle();
  EXPECT_EQ(executed(job.take(1)), "a");
}

TEST(Negotiator, WaitingCallerIsNotHeldBack) {
  Knobs knobs = Simulation::immediate();
  knobs.cycle_time_ns = kMillisecond;
  Simulation job(2, knobs);
  job.submit_everywhere(allreduce("a"));
  for (int rank = 0; rank < 2; ++rank) job.at(rank).set_waiting(true);
  job.settle();
  EXPECT_EQ(executed(job.take(1)), "a");
}

TEST(Negotiator, StallNamesTensorMissingRanksAndAge) {
  Simulation job(4, Simulation::immediate(), {10 * kMillisecond, 0});
  job.submit(0, allreduce("a"));
  job.submit(2, allreduce("a"));
  job.settle();
  EXPECT_EQ(job.at(0).next_wake_ns(), job.now_ns + 10 * kMillisecond);
  job.now_ns += 10 * kMillisecond;
  job.settle();
  EXPECT_EQ(job.take(0), (std::vector<Action>{StallAction{"a", {1, 3}, 10 * kMillisecond, 0, "'a' (allreduce)"}}));
  job.now_ns += 5 * kMillisecond;
  job.settle();
  EXPECT_TRUE(job.take(0).empty());
  job.now_ns += 5 * kMillisecond;
  job.settle();
  EXPECT_EQ(job.take(0), (std::vector<Action>{StallAction{"a", {1, 3}, 20 * kMillisecond, 0, "'a' (allreduce)"}}));
}

TEST(Negotiator, StallShutdownEndsTheJobOnEveryRank) {
  Simulation job(2, Simulation::immediate(), {10 * kMillisecond, 30 * kMillisecond});
  job.submit(0, allreduce("a"));
  for (int i = 0; i < 3; ++i) {
    job.settle();
    job.now_ns += 10 * kMillisecond;
  }
  job.settle();
  EXPECT_TRUE(std::holds_alternative<AbortAction>(job.take(0).back()));
  EXPECT_TRUE(std::holds_alternative<AbortAction>(job.take(1).back()));
}

TEST(Negotiator, SilentCoordinatorIsReportedByTheOthers) {
  Simulation job(2, Simulation::immediate(), {10 * kMillisecond, 0});
  job.submit(1, allreduce("a"));
  job.turn(1);
  job.now_ns += 20 * kMillisecond;
  job.turn(1);
  EXPECT_EQ(job.take(1), (std::vector<Action>{StallAction{"a", {0}, 20 * kMillisecond, 0, "'a' (allreduce)"}}));
}

TEST(Negotiator, IdleRankNeverWakes) {
  Simulation job(2, Simulation::immediate(), {10 * kMillisecond, 0});
  job.submit_everywhere(allreduce("a"));
  job.settle();
  job.now_ns += 20 * kMillisecond;  // the stall check that the tensor had set passes without finding anything
  job.settle();
  EXPECT_EQ(job.at(0).next_wake_ns(), Worker::kNever);
  EXPECT_EQ(job.at(1).next_wake_ns(), Worker::kNever);
}

TEST(Negotiator, LeaverFailsWhatNeedsItAndWhatComesAfter) {
  Simulation job(3);
  job.submit(0, allreduce("a"));
  job.submit(2, allreduce("a"));
  job.at(2).leave();
  job.settle();
  EXPECT_TRUE(job.at(2).has_left());
  EXPECT_FALSE(job.at(0).free_to_go());
  const std::string message =
      "tensor 'a' (allreduce) cannot complete: rank 2 has shut down. All ranks must run the same collectives before "
      "shutdown().";
  EXPECT_EQ(job.take(0), (std::vector<Action>{FailAction{FailureKind::kShutDown, "a", message}}));
  EXPECT_EQ(job.take(2).size(), 1u);
  job.submit(1, allreduce("a"));
  job.settle();
  EXPECT_EQ(job.take(1), (std::vector<Action>{FailAction{FailureKind::kShutDown, "a", message}}));
}

TEST(Negotiator, BatchAgreedBeforeALeaveStillRunsOnTheLeaver) {
  Simulation job(2);
  job.submit(1, allreduce("a"));
  job.turn(1);
  job.at(1).leave();
  job.submit(0, allreduce("a"));
  job.turn(0);
  job.settle();
  EXPECT_EQ(executed(job.take(0)), "a");
  EXPECT_EQ(executed(job.take(1)), "a");
  EXPECT_TRUE(job.at(1).has_left());
}

TEST(Negotiator, CoordinatorThatLeavesFailsTheOthersNowAndLater) {
  Simulation job(2);
  job.submit(1, allreduce("a"));
  job.at(0).leave();
  job.settle();
  EXPECT_TRUE(std::holds_alternative<FailAction>(job.take(1).at(0)));
  job.submit(1, allreduce("b"));
  job.settle();
  EXPECT_TRUE(std::holds_alternative<FailAction>(job.take(1).at(0)));
  job.at(1).leave();
  job.settle();
  EXPECT_TRUE(job.at(1).has_left());
  EXPECT_TRUE(job.at(0).free_to_go());
}

TEST(Negotiator, WorldStepIsTheLongestOfTheNewestThatAllReported) {
  Simulation job(2);
  job.at(0).report_step({1, 100});
  job.at(1).report_step({1, 300});
  job.at(1).report_step({2, 50});
  job.submit_everywhere(allreduce("a"));
  job.settle();
  EXPECT_EQ(job.at(0).world_step(), (StepReport{1, 300}));
}

TEST(Negotiator, AnnouncingTwiceIsAProtocolError) {
  Simulation job(2);
  WorkerNews message;
  message.requests = {{std::make_shared<const Request>(allreduce("a")), RankSet::one(1)}};
  job.at(0).peer_message(1, message, 1, 0);
  EXPECT_THROW(job.at(0).peer_message(1, message, 1, 0), Protocol);
}

TEST(Negotiator, UnknownCacheNumberIsAProtocolError) {
  Simulation job(2);
  WorkerNews message;
  message.cached = {99};
  EXPECT_THROW(job.at(0).peer_message(1, message, 1, 0), Protocol);
}

TEST(Negotiator, WorkerDoesNotTakeAnnouncements) {
  Simulation job(3);
  EXPECT_THROW(job.at(1).peer_message(2, WorkerNews{}, 1, 0), Protocol);
}

}  // namespace
}  // namespace ringtune
