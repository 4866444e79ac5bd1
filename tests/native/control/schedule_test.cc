// The schedule of a steady state: learner and follower as tables, and whole jobs that enter and leave schedules.
#include <gtest/gtest.h>

#include "control/schedule_follower.h"
#include "control/schedule_learner.h"
#include "control/simulation.h"

namespace ringtune {
namespace {

using testing_support::allreduce;
using testing_support::executed;
using testing_support::Simulation;

using Batches = std::vector<std::vector<std::uint32_t>>;

SharedRequest shared(const std::string& name, std::int64_t count = 4) {
  return std::make_shared<const Request>(allreduce(name, {count}));
}

// --- follower -------------------------------------------------------------------------------------------------------

TEST(ScheduleFollower, RunsBatchesInOrderWhateverTheOrderOfTheirTensors) {
  const std::vector<SharedRequest> tensors{shared("a"), shared("b"), shared("c")};
  ScheduleFollower schedule;
  schedule.begin(7, {{tensors[0], tensors[1]}, {tensors[2]}}, 0);
  ASSERT_TRUE(schedule.take(tensors[2], 30, 1));
  ASSERT_TRUE(schedule.take(tensors[1], 20, 2));
  EXPECT_FALSE(schedule.complete());
  EXPECT_EQ(schedule.room(), 16u);
  ASSERT_TRUE(schedule.take(shared("a"), 10, 3)) << "an equal request in other memory";
  ASSERT_TRUE(schedule.complete());
  EXPECT_EQ(std::vector<Tag>(schedule.batch().begin(), schedule.batch().end()), (std::vector<Tag>{10, 20}));
  EXPECT_EQ(schedule.token(), std::uint64_t{7} << 32);
  schedule.ran(4);
  ASSERT_TRUE(schedule.complete());
  EXPECT_EQ(std::vector<Tag>(schedule.batch().begin(), schedule.batch().end()), (std::vector<Tag>{30}));
  schedule.ran(5);
  EXPECT_EQ(schedule.token(), (std::uint64_t{7} << 32) + 2);
  EXPECT_EQ(schedule.pending(), 0u);
  EXPECT_FALSE(schedule.complete());
  schedule.validate_state();
}

TEST(ScheduleFollower, ReturnsWhatWasReadyInItsOrder) {
  const std::vector<SharedRequest> tensors{shared("a"), shared("b"), shared("c")};
  ScheduleFollower schedule;
  schedule.begin(1, {tensors}, 0);
  ASSERT_TRUE(schedule.take(tensors[2], 3, 10));
  ASSERT_TRUE(schedule.take(tensors[0], 1, 11));
  const auto left = schedule.end();
  ASSERT_EQ(left.size(), 2u);
  EXPECT_EQ(left[0].request->name, "c");
  EXPECT_EQ(left[0].tag, 3u);
  EXPECT_EQ(left[1].request->name, "a");
  EXPECT_EQ(left[1].since_ns, 11);
  EXPECT_FALSE(schedule.active());
}

TEST(ScheduleFollower, ExpectsATensorAloneOnlyWhenItIsTheWholeNextBatchAndNothingElseIsReady) {
  const std::vector<SharedRequest> tensors{shared("a"), shared("b"), shared("c"), shared("d")};
  ScheduleFollower schedule;
  schedule.begin(1, {{tensors[0]}, {tensors[1], tensors[2]}, {tensors[3]}}, 0);
  EXPECT_TRUE(schedule.expects_alone(*tensors[0]));
  EXPECT_FALSE(schedule.expects_alone(*shared("a"))) << "an equal request in other memory takes the long way";
  EXPECT_FALSE(schedule.expects_alone(*tensors[3])) << "not yet";
  ASSERT_TRUE(schedule.take(tensors[3], 4, 1));
  EXPECT_FALSE(schedule.expects_alone(*tensors[0])) << "something is ready";
  ASSERT_TRUE(schedule.take(tensors[0], 1, 1));
  EXPECT_FALSE(schedule.expects_alone(*tensors[0])) << "it is ready already";
  schedule.ran(2);
  EXPECT_FALSE(schedule.expects_alone(*tensors[1])) << "one of two";
}

TEST(ScheduleFollower, KnowsTheRowsOfAnAllgather) {
  const SharedRequest a = shared("a");
  const SharedRequest b = shared("b");
  ScheduleFollower schedule;
  schedule.begin(1, {{}, {a}, {b}}, 0, {{9}, {}, {4, 0, 2}});
  EXPECT_EQ(schedule.rows(), std::vector<std::int64_t>{});
  ASSERT_TRUE(schedule.take(a, 1, 1));
  ASSERT_TRUE(schedule.take(b, 2, 1));
  schedule.ran(2);
  EXPECT_EQ(schedule.rows(), (std::vector<std::int64_t>{4, 0, 2}));
}

TEST(ScheduleFollower, RefusesWhatIsNotInTheSchedule) {
  const SharedRequest a = shared("a");
  ScheduleFollower schedule;
  schedule.begin(1, {{a}}, 0);
  EXPECT_FALSE(schedule.take(shared("x"), 0, 0));
  EXPECT_FALSE(schedule.take(shared("a", 5), 0, 0)) << "another shape";
}

// --- learner --------------------------------------------------------------------------------------------------------

/// Feeds rounds of tensors 1 .. n, each round in one decision.
class Lessons {
 public:
  std::optional<Batches> round(const std::vector<std::uint32_t>& ids, bool apart = false) {
    std::optional<Batches> schedule;
    ++sequence;
    for (const std::uint32_t& id : ids) {
      if (apart) ++sequence;
      const bool last = apart || &id == &ids.back();
      schedule = learner.decided({id, shared("t" + std::to_string(id)), now_ns, sequence, awaited}, knobs, last);
      now_ns += step_ns;
    }
    return schedule;
  }
  ScheduleLearner learner;
  Knobs knobs;
  std::uint64_t sequence = 0;
  std::int64_t now_ns = 0;
  std::int64_t step_ns = 0;
  bool awaited = false;
};

TEST(ScheduleLearner, SchedulesAfterThreeEqualRounds) {
  Lessons lessons;
  EXPECT_FALSE(lessons.round({1, 2, 3}));  // where it ends is not known yet
  EXPECT_FALSE(lessons.round({1, 2, 3}));
  EXPECT_EQ(lessons.round({1, 2, 3}), (Batches{{1, 2, 3}}));
}

TEST(ScheduleLearner, ForgetsTensorsThatNeverComeAgain) {
  Lessons lessons;
  lessons.knobs.cache_capacity = 8;
  std::weak_ptr<const Request> first;
  for (std::uint32_t id = 1; id <= 100; ++id) {
    const SharedRequest request = shared("step" + std::to_string(id));
    if (id == 1) first = request;
    EXPECT_FALSE(lessons.learner.decided({id, request, 0, id, false}, lessons.knobs));
  }
  EXPECT_TRUE(first.expired());
  for (int round = 0; round < 2; ++round) EXPECT_FALSE(lessons.round({201, 202}));
  EXPECT_TRUE(lessons.round({201, 202}) || lessons.round({201, 202})) << "what repeats itself is still learnt";
}

TEST(ScheduleLearner, AStepThatBeginsLikeAKnownScheduleIsLearntAsAWhole) {
  Lessons lessons;
  (void)lessons.round({1, 2});
  (void)lessons.round({1, 2});
  ASSERT_TRUE(lessons.round({1, 2}));
  lessons.learner.ended(100, 1);
  EXPECT_FALSE(lessons.round({1, 2, 3, 4}));
  EXPECT_FALSE(lessons.round({1, 2, 3, 4}));
  EXPECT_EQ(lessons.round({1, 2, 3, 4}), (Batches{{1, 2, 3, 4}}));
}

TEST(ScheduleLearner, FindsWhereStepsBeginAfterADisturbanceInTheMiddleOfOne) {
  Lessons lessons;
  EXPECT_FALSE(lessons.round({3, 4}));
  EXPECT_FALSE(lessons.round({1, 2, 3, 4}));
  EXPECT_FALSE(lessons.round({1, 2, 3, 4}));
  EXPECT_FALSE(lessons.round({1, 2, 3, 4}));
  std::optional<Batches> schedule;
  for (int step = 0; step < 3 && !schedule; ++step) schedule = lessons.round({1, 2, 3, 4});
  EXPECT_EQ(schedule, (Batches{{1, 2, 3, 4}}));
}

TEST(ScheduleLearner, OrderWithinARoundDoesNotMatter) {
  Lessons lessons;
  EXPECT_FALSE(lessons.round({1, 2, 3}));
  EXPECT_FALSE(lessons.round({2, 1, 3}));
  EXPECT_EQ(lessons.round({3, 2, 1}), (Batches{{3, 2, 1}}));
}

TEST(ScheduleLearner, OtherTensorsStartAnew) {
  Lessons lessons;
  EXPECT_FALSE(lessons.round({1, 2}));
  EXPECT_FALSE(lessons.round({1, 2}));
  EXPECT_FALSE(lessons.round({1, 3}));
  EXPECT_FALSE(lessons.round({1, 3}));
  EXPECT_TRUE(lessons.round({1, 3}));
}

TEST(ScheduleLearner, WhatHasNoNumberStartsAnew) {
  Lessons lessons;
  EXPECT_FALSE(lessons.round({1}));
  EXPECT_FALSE(lessons.round({1}));
  EXPECT_FALSE(lessons.learner.decided({TensorRef::kUncached, shared("new"), 0, 99, false}, lessons.knobs));
  EXPECT_FALSE(lessons.round({1}));
  EXPECT_FALSE(lessons.round({1}));
  EXPECT_TRUE(lessons.round({1}));
}

TEST(ScheduleLearner, EveryOtherCollectiveIsABatchOfItsOwn) {
  struct Other {
    CollectiveKind kind;
    ReduceOp op = ReduceOp::kSum;
  };
  for (const Other& other :
       {Other{CollectiveKind::kAllgather}, Other{CollectiveKind::kBroadcast}, Other{CollectiveKind::kBarrier},
        Other{CollectiveKind::kAlltoall}, Other{CollectiveKind::kReducescatter},
        Other{CollectiveKind::kAllreduce, ReduceOp::kAdasum}}) {
    Request request = *shared("other");
    request.kind = other.kind;
    request.op = other.op;
    ScheduleLearner learner;
    std::optional<Batches> schedule;
    for (std::uint64_t round = 1; round <= 3; ++round) {
      EXPECT_FALSE(schedule);
      (void)learner.decided({1, shared("a"), 0, round, false}, Knobs{}, false);
      (void)learner.decided({2, std::make_shared<const Request>(request), 0, round, false}, Knobs{}, false);
      schedule = learner.decided({3, shared("b"), 0, round, false}, Knobs{}, true);
    }
    EXPECT_EQ(schedule, (Batches{{1, 3}, {2}})) << name_of(other.kind);
  }
}

TEST(ScheduleLearner, WhatEndedAScheduleIsNoPartOfTheNextRound) {
  Lessons lessons;
  for (int i = 0; i < 3; ++i) (void)lessons.round({1, 2});
  for (int step = 0; step < 3; ++step) {
    lessons.learner.ended(100, 1);
    EXPECT_FALSE(lessons.round({9}));
    EXPECT_TRUE(lessons.round({1, 2})) << step;
  }
}

TEST(ScheduleLearner, WhatEndedAScheduleThatDidNotLastIs) {
  Lessons lessons;
  for (int i = 0; i < 3; ++i) (void)lessons.round({1, 2});
  lessons.learner.ended(100, 1);
  EXPECT_FALSE(lessons.round({9}));
  ASSERT_TRUE(lessons.round({1, 2}));
  lessons.learner.ended(1, 1);  // from now on in every step
  EXPECT_FALSE(lessons.round({9, 1, 2}));
  EXPECT_FALSE(lessons.round({9, 1, 2}));
  EXPECT_EQ(lessons.round({9, 1, 2}), (Batches{{9, 1, 2}}));
}

TEST(ScheduleLearner, OtherStepsAfterAScheduleAreLearntLikeTheFirst) {
  Lessons lessons;
  for (int i = 0; i < 3; ++i) (void)lessons.round({1, 2});
  lessons.learner.ended(100, 1);
  EXPECT_FALSE(lessons.round({7, 8}));  // taken for what comes between
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(lessons.round({7, 8})) << i;
  EXPECT_EQ(lessons.round({7, 8}), (Batches{{7, 8}}));
}

TEST(ScheduleLearner, AScheduleThatServedComesBackAfterOneRound) {
  Lessons lessons;
  for (int i = 0; i < 3; ++i) (void)lessons.round({1, 2});
  lessons.learner.ended(100, 1);
  EXPECT_TRUE(lessons.round({2, 1}));
}

TEST(ScheduleLearner, AScheduleThatDidNotLastMustBeEarnedAgain) {
  Lessons lessons;
  for (int i = 0; i < 3; ++i) (void)lessons.round({1, 2});
  lessons.learner.ended(1, 1);
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(lessons.round({1, 2})) << i;
  EXPECT_TRUE(lessons.round({1, 2}));
}

TEST(ScheduleLearner, CutsAtPausesAndAtBlockedCallers) {
  Lessons lessons;
  lessons.step_ns = 5 * lessons.knobs.cycle_time_ns;
  for (int i = 0; i < 2; ++i) (void)lessons.round({1, 2}, true);
  EXPECT_EQ(lessons.round({1, 2}, true), (Batches{{1}, {2}}));
  Lessons blocked;
  blocked.awaited = true;
  for (int i = 0; i < 2; ++i) (void)blocked.round({1, 2}, true);
  EXPECT_EQ(blocked.round({1, 2}, true), (Batches{{1}, {2}}));
  Lessons bundled;
  for (int i = 0; i < 2; ++i) (void)bundled.round({1, 2}, true);
  EXPECT_EQ(bundled.round({1, 2}, true), (Batches{{1, 2}}));
}

TEST(ScheduleLearner, CutsAtTheFusionSize) {
  Lessons lessons;
  lessons.knobs.fusion_bytes = 128;
  for (int i = 0; i < 2; ++i) (void)lessons.round({1, 2, 3});
  EXPECT_EQ(lessons.round({1, 2, 3}), (Batches{{1, 2}, {3}}));
}

// --- whole jobs -----------------------------------------------------------------------------------------------------

Simulation steady_job(int size) { return Simulation(size, Simulation::immediate(), {}, true); }

void step(Simulation& job, const std::vector<std::string>& names) {
  for (const std::string& name : names) job.submit_everywhere(allreduce(name));
  job.settle();
}

TEST(Schedule, RepeatedStepsNeedNoMessages) {
  for (const int size : {2, 3, 8}) {
    Simulation job = steady_job(size);
    for (int i = 0; i < 3; ++i) step(job, {"a", "b"});
    ASSERT_TRUE(job.in_schedule());
    for (int rank = 0; rank < size; ++rank) (void)job.take(rank);
    const int before = job.messages;
    for (int i = 0; i < 10; ++i) {
      step(job, {"b", "a"});
      for (int rank = 0; rank < size; ++rank) EXPECT_EQ(executed(job.take(rank)), "a b") << size;
    }
    EXPECT_EQ(job.messages, before);
  }
}

TEST(Schedule, ANewTensorEndsItAndNothingIsLost) {
  Simulation job = steady_job(3);
  for (int i = 0; i < 3; ++i) step(job, {"a", "b"});
  for (int rank = 0; rank < 3; ++rank) (void)job.take(rank);
  job.submit(0, allreduce("a"));
  job.submit(1, allreduce("x"));
  job.settle();
  EXPECT_FALSE(job.at(0).in_schedule());
  step(job, {"b"});
  job.submit(0, allreduce("x"));
  job.submit(2, allreduce("x"));
  job.submit(1, allreduce("a"));
  job.submit(2, allreduce("a"));
  job.settle();
  const auto first = executed(job.take(0));
  EXPECT_EQ(executed(job.take(1)), first);
  EXPECT_EQ(executed(job.take(2)), first);
}

TEST(Schedule, AMissingTensorEndsItWhenACallerWaits) {
  Knobs knobs = Simulation::immediate();
  knobs.cycle_time_ns = 1'000'000;
  Simulation job(2, knobs, {}, true);
  for (int i = 0; i < 3; ++i) {
    job.submit_everywhere(allreduce("a"));
    job.submit_everywhere(allreduce("b"));
    job.now_ns += knobs.cycle_time_ns;
    job.settle();
  }
  ASSERT_TRUE(job.in_schedule());
  for (int rank = 0; rank < 2; ++rank) (void)job.take(rank);
  job.submit_everywhere(allreduce("a"));
  job.at(0).set_waiting(true);
  job.settle();
  EXPECT_TRUE(job.in_schedule());
  EXPECT_EQ(job.at(0).next_wake_ns(), job.now_ns + knobs.cycle_time_ns);
  job.now_ns += knobs.cycle_time_ns;
  job.settle();
  EXPECT_FALSE(job.at(0).in_schedule());
  EXPECT_FALSE(job.at(1).in_schedule());
  job.now_ns += knobs.cycle_time_ns;
  job.settle();
  EXPECT_EQ(executed(job.take(0)), "a");
  EXPECT_EQ(executed(job.take(1)), "a");
}

TEST(Schedule, KnobsChangeAtTheSameRound) {
  Simulation job = steady_job(3);
  for (int i = 0; i < 4; ++i) step(job, {"a", "b"});
  ASSERT_TRUE(job.in_schedule());
  for (int rank = 0; rank < 3; ++rank) (void)job.take(rank);
  Knobs knobs = Simulation::immediate();
  knobs.fusion_bytes = 64;
  EXPECT_EQ(job.at(0).propose(knobs), 1u);
  job.submit(1, allreduce("a"));
  job.submit(1, allreduce("b"));
  job.settle();
  for (int rank = 0; rank < 3; ++rank) {
    const auto actions = job.take(rank);
    ASSERT_EQ(actions.size(), 1u) << rank;
    EXPECT_EQ(std::get<ApplyKnobsAction>(actions[0]).knobs, knobs);
    EXPECT_FALSE(job.at(rank).in_schedule());
  }
}

TEST(Schedule, ARankLeavesTheJobFromWithinASchedule) {
  Simulation job = steady_job(3);
  for (int i = 0; i < 4; ++i) step(job, {"a"});
  ASSERT_TRUE(job.in_schedule());
  for (int rank = 0; rank < 3; ++rank) (void)job.take(rank);
  job.submit(0, allreduce("a"));
  job.turn(0);
  job.at(2).leave();
  job.settle();
  EXPECT_TRUE(job.at(2).has_left());
  const auto actions = job.take(0);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(std::get<FailAction>(actions[0]).name, "a");
}

}  // namespace
}  // namespace ringtune
