// Process sets in the negotiation: registering, removing, batches of members only.
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
using testing_support::remove_set;
using testing_support::Simulation;

RankSet set_of(std::vector<std::int32_t> ranks) { return RankSet::of(ranks); }

/// A job with a process set 1 of these ranks.
Simulation job_with_set(int size, const std::vector<std::int32_t>& members) {
  Simulation job(size);
  job.submit_everywhere(add_set(members));
  job.settle();
  job.forget();
  return job;
}

TEST(ProcessSetNegotiation, AllRanksGetTheSetBetweenTheSameBatches) {
  Simulation job(4);
  job.submit_everywhere(allreduce("before"));
  job.submit_everywhere(add_set({2, 1}));
  job.submit_everywhere(allreduce("after"));
  job.settle();
  const std::vector<Action> first = job.take(0);
  ASSERT_EQ(first.size(), 3u);
  EXPECT_EQ(first[1], Action(SetAction{"add_process_set", true, 1, set_of({1, 2})}));
  for (int rank = 1; rank < 4; ++rank) EXPECT_EQ(job.take(rank), first);
}

TEST(ProcessSetNegotiation, OnlyMembersRunItsBatches) {
  Simulation job = job_with_set(4, {1, 3});
  for (int round = 0; round < 3; ++round) {  // the second and third by number
    for (const int rank : {1, 3}) job.submit(rank, in_set(1, allreduce("a")));
    job.settle();
    for (const int rank : {1, 3}) {
      const std::vector<Action> actions = job.take(rank);
      ASSERT_EQ(actions.size(), 1u);
      EXPECT_EQ(std::get<ExecuteAction>(actions[0]).process_set, 1u);
      EXPECT_EQ(executed(actions), "a");
    }
    for (const int rank : {0, 2}) EXPECT_TRUE(job.take(rank).empty());
  }
}

TEST(ProcessSetNegotiation, OneNameInTwoSetsIsTwoTensorsThatNeverFuse) {
  Simulation job = job_with_set(3, {0, 1});
  for (int round = 0; round < 2; ++round) {
    job.submit_everywhere(allreduce("a", {2}));
    for (const int rank : {0, 1}) job.submit(rank, in_set(1, allreduce("a", {5})));
    job.settle();
    EXPECT_EQ(executed(job.take(0)), "a|a");
    EXPECT_EQ(executed(job.take(2)), "a");
    job.forget();
  }
}

TEST(ProcessSetNegotiation, MismatchNamesGlobalRanks) {
  Simulation job = job_with_set(6, {2, 5});
  job.submit(2, in_set(1, allreduce("a", {2})));
  job.submit(5, in_set(1, allreduce("a", {3})));
  job.settle();
  EXPECT_EQ(failure(job.take(5)),
            "Mismatched ALLREDUCE tensor shapes: One rank had shape [2], but another rank had shape [3]. Tensor 'a': "
            "shape [2] on rank 2; shape [3] on rank 5. Submit the same shape on every rank.");
  EXPECT_TRUE(job.take(0).empty());
}

TEST(ProcessSetNegotiation, AllgatherRowsAreByMember) {
  Simulation job = job_with_set(4, {1, 3});
  for (int round = 0; round < 2; ++round) {
    for (const int rank : {1, 3}) {
      Request request = in_set(1, allreduce("g", {rank, 2}));
      request.kind = CollectiveKind::kAllgather;
      job.submit(rank, request);
    }
    job.settle();
    EXPECT_EQ(std::get<ExecuteAction>(job.take(3).at(0)).rows, (std::vector<std::int64_t>{1, 3})) << round;
  }
}

struct BadSet {
  const char* name;
  std::vector<std::int32_t> members;
  const char* message;
};
void PrintTo(const BadSet& c, std::ostream* out) { *out << c.name; }

class BadProcessSet : public testing::TestWithParam<BadSet> {};
TEST_P(BadProcessSet, IsRefusedOnAllRanks) {
  Simulation job = job_with_set(3, {0, 2});
  job.submit_everywhere(add_set(GetParam().members));
  job.settle();
  for (int rank = 0; rank < 3; ++rank) {
    const std::vector<Action> actions = job.take(rank);
    ASSERT_EQ(actions.size(), 1u);
    EXPECT_EQ(actions[0], Action(FailAction{FailureKind::kInvalidArgument, "add_process_set", GetParam().message}));
  }
}
INSTANTIATE_TEST_SUITE_P(
    Table, BadProcessSet,
    testing::Values(
        BadSet{"duplicate", {2, 0}, "Attempted to add a duplicate process set: ranks [0, 2] are process set 1 already"},
        BadSet{"all", {0, 1, 2}, "Attempted to add a duplicate process set: ranks [0-2] are process set 0 already"},
        BadSet{"empty", {}, "a process set needs ranks of 0 to 2, got []"},
        BadSet{"no_such_rank", {1, 3}, "a process set needs ranks of 0 to 2, got [1, 3]"}),
    [](const auto& row) { return std::string(row.param.name); });

TEST(ProcessSetNegotiation, RanksThatAddDifferentSetsAreTold) {
  Simulation job(2);
  job.submit(0, add_set({0}));
  job.submit(1, add_set({1}));
  job.settle();
  EXPECT_EQ(failure(job.take(1)),
            "Mismatched process sets: One rank had process set [0], but another rank had process set [1]. Tensor "
            "'add_process_set': process set [0] on rank 0; process set [1] on rank 1. Add the same process set on "
            "every rank.");
}

TEST(ProcessSetNegotiation, NumbersOfRemovedSetsComeBackInOrder) {
  Simulation job(3);
  const auto added = [&](std::vector<std::int32_t> members) {
    job.submit_everywhere(add_set(std::move(members)));
    job.settle();
    const auto actions = job.take(0);
    job.forget();
    return std::get<SetAction>(actions.at(0)).id;
  };
  EXPECT_EQ(added({0}), 1u);
  EXPECT_EQ(added({1}), 2u);
  EXPECT_EQ(added({2}), 3u);
  for (const std::uint32_t id : {2u, 1u}) {
    job.submit_everywhere(remove_set(id));
    job.settle();
    EXPECT_FALSE(std::get<SetAction>(job.take(0).at(0)).added);
  }
  EXPECT_EQ(added({0, 1}), 2u);
  EXPECT_EQ(added({1, 2}), 1u);
  EXPECT_EQ(added({0, 2}), 4u);
}

TEST(ProcessSetNegotiation, RemovalFailsWhatIsPendingAndWhatIsOnItsWay) {
  Simulation job = job_with_set(3, {0, 1});
  for (const int rank : {0, 1}) job.submit(rank, in_set(1, allreduce("known")));
  job.settle();
  job.forget();
  job.submit(0, in_set(1, allreduce("a")));
  job.submit_everywhere(remove_set(1));
  job.turn(1);
  job.turn(2);
  job.turn(0);                                   // decided
  job.submit(1, in_set(1, allreduce("known")));  // by number
  job.submit(1, in_set(1, allreduce("new")));
  job.settle();
  EXPECT_EQ(failure(job.take(0)), "process set 1 was removed while it was pending");
  EXPECT_EQ(failure(job.take(1)), "several");
  job.submit_everywhere(allreduce("a"));
  job.settle();
  EXPECT_EQ(executed(job.take(2)), "a");
}

TEST(ProcessSetNegotiation, UnknownSetCannotBeRemoved) {
  Simulation job(2);
  job.submit_everywhere(remove_set(3));
  job.settle();
  EXPECT_EQ(failure(job.take(1)), "process set 3 cannot be removed: it is not registered");
}

TEST(ProcessSetNegotiation, SetWithoutALeaverGoesOn) {
  Simulation job = job_with_set(4, {0, 1});
  job.at(3).leave();
  job.settle();
  for (const int rank : {0, 1}) job.submit(rank, in_set(1, allreduce("a")));
  job.submit(0, allreduce("b"));
  job.settle();
  EXPECT_EQ(executed(job.take(1)), "a");
  EXPECT_EQ(failure(job.take(0)),
            "tensor 'b' (allreduce) cannot complete: rank 3 has shut down. All ranks must run the same "
            "collectives before shutdown().");
}

TEST(ProcessSetNegotiation, StallNamesTheMissingMembersOnly) {
  Simulation job(4, Simulation::immediate(), {10, 0});
  job.submit_everywhere(add_set({1, 2, 3}));
  job.settle();
  job.forget();
  job.submit(2, in_set(1, allreduce("a")));
  job.settle();
  job.now_ns += 10;
  job.settle();
  EXPECT_EQ(job.take(0), (std::vector<Action>{StallAction{"a", {1, 3}, 10, 1, "'a' (allreduce)"}}));
}

TEST(ProcessSetNegotiation, AnnouncementByANonMemberIsAProtocolError) {
  Simulation job = job_with_set(3, {0, 1});
  WorkerNews message;
  message.requests = {{std::make_shared<const Request>(in_set(1, allreduce("a"))), RankSet::one(2)}};
  EXPECT_THROW(job.at(0).peer_message(2, message, 1, 0), Protocol);
}

}  // namespace
}  // namespace ringtune
