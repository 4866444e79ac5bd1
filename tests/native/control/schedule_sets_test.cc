// Schedules of several process sets: a rank follows the batches of its own sets, and each set leaves the schedule at
// one round.
#include <gtest/gtest.h>

#include "control/schedule_follower.h"
#include "control/simulation.h"

namespace ringtune {
namespace {

using testing_support::add_set;
using testing_support::allreduce;
using testing_support::executed;
using testing_support::in_set;
using testing_support::Rounds;
using testing_support::Simulation;

SharedRequest shared(std::uint32_t set, const std::string& name) {
  return std::make_shared<const Request>(in_set(set, allreduce(name)));
}

constexpr std::uint64_t token(std::uint64_t schedule, std::uint64_t round) { return schedule << 32 | round; }

TEST(ScheduleOfSets, ARankCountsTheBatchesThatAreNotItsOwn) {
  const SharedRequest a = shared(1, "t");
  const SharedRequest b = shared(2, "t");
  ScheduleFollower schedule;
  schedule.begin(3, {{}, {a}, {}, {b}, {}}, 0);
  EXPECT_EQ(schedule.token(), token(3, 1));
  EXPECT_EQ(schedule.process_set(), 1u);
  ASSERT_TRUE(schedule.take(shared(2, "t"), 20, 1)) << "the same name in another set";
  EXPECT_FALSE(schedule.complete());
  ASSERT_TRUE(schedule.take(a, 10, 1));
  ASSERT_TRUE(schedule.complete());
  schedule.ran(2);
  EXPECT_EQ(schedule.token(), token(3, 3));
  EXPECT_EQ(schedule.process_set(), 2u);
  ASSERT_TRUE(schedule.complete());
  schedule.ran(3);
  EXPECT_EQ(schedule.token(), token(3, 6)) << "the second batch of the second pass";
  EXPECT_EQ(schedule.rounds(), 6u);
  schedule.validate_state();
}

TEST(ScheduleOfSets, LeavingConcernsTheNextRoundOfEachSet) {
  const SharedRequest a = shared(1, "a");
  const SharedRequest b = shared(1, "b");
  const SharedRequest c = shared(2, "c");
  ScheduleFollower schedule;
  schedule.begin(5, {{a}, {c}, {b}, {}}, 0);
  ASSERT_TRUE(schedule.take(a, 0, 1));
  schedule.ran(1);
  ASSERT_TRUE(schedule.take(c, 0, 1));
  schedule.ran(1);
  const auto rounds = schedule.next_rounds();
  ASSERT_EQ(rounds.size(), 2u);
  EXPECT_EQ(rounds[0].token, token(5, 2));
  EXPECT_EQ(rounds[0].batch, (std::vector<SharedRequest>{b}));
  EXPECT_EQ(rounds[1].token, token(5, 5)) << "of the next pass";
  EXPECT_EQ(rounds[1].batch, (std::vector<SharedRequest>{c}));
}

TEST(ScheduleOfSets, TravelsWithTheSetOfEachBatch) {
  const Decisions decisions{9, {ScheduleDecision{4, 17, {{0, {1, 2}}, {7, {3}}}}}};
  EXPECT_EQ(std::get<Decisions>(decode(encode(decisions))), decisions);
}

/// What the ranks do in a step: tensors of sets, in this order on every member.
using Steps = std::vector<std::pair<std::uint32_t, std::string>>;

class SchedulesOfSets : public testing::TestWithParam<Rounds> {
 protected:
  /// A job with these sets, numbers 1, 2 ...
  void begin(int size, const std::vector<std::vector<std::int32_t>>& sets) {
    job = std::make_unique<Simulation>(size, Simulation::immediate(), StallLimits{}, true);
    job->use(GetParam());
    members = {{}};
    for (int rank = 0; rank < size; ++rank) members[0].push_back(rank);
    for (const auto& set : sets) {
      job->submit_everywhere(add_set(set));
      job->settle();
      members.push_back(set);
    }
    job->forget();
  }

  void step(const Steps& tensors) {
    for (const auto& [set, name] : tensors) {
      for (const int rank : members[set]) job->submit(rank, in_set(set, allreduce(name)));
    }
    job->settle();
  }

  [[nodiscard]] std::string ran(int rank) { return executed(job->take(rank)); }

  std::unique_ptr<Simulation> job;
  std::vector<std::vector<std::int32_t>> members;
};
INSTANTIATE_TEST_SUITE_P(DataPaths, SchedulesOfSets, testing::Values(Rounds::kMemory, Rounds::kLinks));

TEST_P(SchedulesOfSets, OverlappingAndGlobalOnesNeedNoMessages) {
  begin(3, {{0, 1}, {1, 2}});
  const Steps steps{{1, "a"}, {0, "g"}, {2, "b"}};
  for (int i = 0; i < 4; ++i) step(steps);
  ASSERT_TRUE(job->in_schedule());
  job->forget();
  job->messages = 0;
  for (int i = 0; i < 2; ++i) step(steps);
  EXPECT_EQ(job->messages, 0);
  EXPECT_EQ(ran(0), "a|g|a|g");
  EXPECT_EQ(ran(1), "a|g|b|a|g|b");
  EXPECT_EQ(ran(2), "g|b|g|b");
}

TEST_P(SchedulesOfSets, DisjointOnesComeForwardAtTheirOwnPace) {
  begin(4, {{0, 1}, {2, 3}});
  for (int i = 0; i < 4; ++i) step({{1, "a"}, {2, "b"}});
  ASSERT_TRUE(job->in_schedule());
  job->forget();
  job->messages = 0;
  for (int i = 0; i < 3; ++i) step({{1, "a"}});
  step({{2, "b"}});
  EXPECT_EQ(job->messages, 0);
  EXPECT_EQ(ran(1), "a|a|a");
  EXPECT_EQ(ran(2), "b");
  job->forget();
  // A surprise in one is the end of it in both, wherever they are.
  step({{2, "new"}});
  for (int rank = 0; rank < 4; ++rank) EXPECT_FALSE(job->at(rank).in_schedule()) << rank;
  step({{1, "a"}});
  step({{0, "g"}});
  step({{2, "b"}});
  EXPECT_EQ(ran(0), "a|g");
  EXPECT_EQ(ran(3), "new|g|b");
}

TEST_P(SchedulesOfSets, WhoWaitsInARoundOfOneSetLeavesTheOthersWithIt) {
  begin(3, {{0, 1}, {1, 2}});
  for (int i = 0; i < 4; ++i) step({{1, "a"}, {2, "b"}});
  ASSERT_TRUE(job->in_schedule());
  job->forget();
  job->submit(1, in_set(1, allreduce("a")));  // rank 1 waits in a round for rank 0
  job->submit(1, in_set(2, allreduce("b")));
  job->submit(2, in_set(2, allreduce("b")));  // rank 2 in one for rank 1
  job->settle();
  EXPECT_TRUE(job->at(1).round_posted() && job->at(2).round_posted());
  job->submit(0, in_set(1, allreduce("other")));
  job->settle();
  for (int rank = 0; rank < 3; ++rank) EXPECT_FALSE(job->at(rank).in_schedule()) << rank;
  EXPECT_EQ(ran(2), "b") << "negotiated now";
  job->submit(0, in_set(1, allreduce("a")));
  job->submit(1, in_set(1, allreduce("other")));
  job->settle();
  EXPECT_EQ(ran(0), "a|other");
  EXPECT_EQ(ran(1), "b|a|other");
}

TEST_P(SchedulesOfSets, RanksWithoutAPartAreServedBesideIt) {
  begin(4, {{1, 2}, {0, 3}});
  for (int i = 0; i < 4; ++i) step({{1, "a"}});
  EXPECT_TRUE(job->at(1).in_schedule() && job->at(2).in_schedule());
  EXPECT_FALSE(job->at(0).in_schedule() || job->at(3).in_schedule());
  step({{2, "b"}});
  EXPECT_EQ(ran(3), "b");
  EXPECT_TRUE(job->at(1).in_schedule());
  // What repeats itself beside a schedule becomes part of one.
  for (int i = 0; i < 8; ++i) step({{1, "a"}, {2, "b"}});
  EXPECT_TRUE(job->in_schedule());
  job->messages = 0;
  step({{1, "a"}, {2, "b"}});
  EXPECT_EQ(job->messages, 0);
}

TEST_P(SchedulesOfSets, OneThatHasServedGivesWayToWhatRepeatsItselfBesideIt) {
  begin(4, {{1, 2}, {0, 3}});
  for (int i = 0; i < 20; ++i) step({{1, "a"}});
  ASSERT_TRUE(job->at(1).in_schedule());
  const auto both = [&] {
    step({{1, "a"}});
    step({{2, "b"}});  // decided by itself: the schedule of the one could begin again before the other comes
  };
  for (int i = 0; i < 12; ++i) both();
  EXPECT_TRUE(job->in_schedule());
  job->messages = 0;
  for (int i = 0; i < 12; ++i) both();
  EXPECT_EQ(job->messages, 0);
}

TEST_P(SchedulesOfSets, ARoundDoesNotKeepARankFromAllElseForEver) {
  begin(3, {{0, 1}, {1, 2}});
  for (int i = 0; i < 4; ++i) step({{1, "a"}, {2, "b"}});
  ASSERT_TRUE(job->in_schedule());
  job->forget();
  job->submit(1, in_set(1, allreduce("a")));  // rank 0 comes to it when it knows, by other means, of b
  job->settle();
  job->now_ns += 60'000'000'000;
  job->settle();
  EXPECT_TRUE(job->in_schedule()) << "a rank may be late";
  job->submit(1, in_set(2, allreduce("b")));
  job->submit(2, in_set(2, allreduce("b")));
  job->settle();
  EXPECT_EQ(ran(2), "b");
  for (int rank = 0; rank < 3; ++rank) EXPECT_FALSE(job->at(rank).in_schedule()) << rank;
  job->submit(0, in_set(1, allreduce("a")));
  job->settle();
  EXPECT_EQ(ran(0), "a");
  EXPECT_EQ(ran(1), "b|a");
}

TEST_P(SchedulesOfSets, ALateRankDoesNotEndAScheduleAtOnce) {
  begin(3, {{0, 1}, {1, 2}});
  for (int i = 0; i < 4; ++i) step({{1, "a"}, {2, "b"}});
  job->forget();
  for (const int rank : {1, 2}) job->submit(rank, in_set(2, allreduce("b")));
  job->submit(1, in_set(1, allreduce("a")));
  job->settle();
  job->now_ns += 900'000'000;
  job->settle();
  job->submit(0, in_set(1, allreduce("a")));
  job->settle();
  EXPECT_TRUE(job->in_schedule());
  EXPECT_EQ(ran(1), "a|b");
}

TEST_P(SchedulesOfSets, WhatWasAnnouncedBeforeAScheduleBeganIsNotForgotten) {
  begin(3, {{1, 2}});
  job->submit(0, allreduce("g"));
  job->settle();
  for (int i = 0; i < 4; ++i) step({{1, "a"}});
  EXPECT_TRUE(job->at(1).in_schedule());
  job->forget();
  job->submit(1, allreduce("g"));
  job->submit(2, allreduce("g"));
  job->settle();
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(ran(rank), "g") << rank;
}

TEST_P(SchedulesOfSets, ARankWithoutAPartChangesKnobsAndLeaves) {
  begin(3, {{1, 2}});
  for (int i = 0; i < 4; ++i) step({{1, "a"}});
  ASSERT_TRUE(job->at(1).in_schedule());
  job->forget();
  Knobs knobs = Simulation::immediate();
  knobs.fusion_bytes = 64;
  EXPECT_EQ(job->at(0).propose(knobs), 1u);
  job->settle();
  for (int rank = 0; rank < 3; ++rank) {
    const auto actions = job->take(rank);
    ASSERT_EQ(actions.size(), 1u) << rank;
    EXPECT_EQ(std::get<ApplyKnobsAction>(actions[0]).knobs, knobs);
  }
  for (int i = 0; i < 4; ++i) step({{1, "a"}});
  ASSERT_TRUE(job->at(1).in_schedule());
  job->at(0).leave();
  job->settle();
  EXPECT_FALSE(job->at(1).in_schedule());
  job->forget();
  job->submit(1, in_set(1, allreduce("a")));
  job->settle();
  const auto actions = job->take(1);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(std::get<FailAction>(actions[0]).name, "a") << "rank 0 decides no more";
}

}  // namespace
}  // namespace ringtune
