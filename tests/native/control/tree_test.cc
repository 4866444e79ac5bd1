// PeerInfos go up a tree and decisions down: how many messages that takes, and that whatever the ranks do ends as
// it does in a star.
#include "control/tree.h"

#include <gtest/gtest.h>

#include <algorithm>

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
using testing_support::remove_set;
using testing_support::Simulation;

constexpr std::int64_t kTreeMillisecond = 1'000'000;

Simulation tree(int size, int fan_out, StallLimits stall = {}) {
  return Simulation(size, Simulation::immediate(), stall, false, fan_out);
}

std::vector<std::uint64_t> message_counts(Simulation& job) {
  std::vector<std::uint64_t> counts;
  for (int rank = 0; rank < job.size(); ++rank) counts.push_back(job.at(rank).counters().messages);
  return counts;
}

TEST(Tree, LevelsAreTheRanksBetweenRankZeroAndTheDeepest) {
  for (const int fan_out : {1, 2, 3, kDefaultFanOut}) {
    for (const int size : {1, 2, 3, 8, 9, 10, 11, 40, 73, 74, 100}) {
      int deepest = 0;
      for (int rank = 1; rank < size; ++rank) {
        int between = 0;
        for (int at = tree_place(rank, size, fan_out).parent; at > 0; ++between) {
          at = tree_place(at, size, fan_out).parent;
        }
        deepest = std::max(deepest, between);
      }
      EXPECT_EQ(tree_levels(size, fan_out), deepest) << size << " ranks, " << fan_out << " children";
    }
  }
}

TEST(Tree, EveryRankHandlesAMessageEachWayPerLinkAndCycle) {
  for (const int size : {2, 9, 64, 300}) {
    Simulation job = tree(size, 4);
    for (int cycle = 0; cycle < 4; ++cycle) {  // in full, in full with the number told, by number
      const std::vector<std::uint64_t> before = message_counts(job);
      for (int i = 0; i < 5; ++i) job.submit_everywhere(allreduce("t" + std::to_string(i)));
      job.settle();
      const std::vector<std::uint64_t> after = message_counts(job);
      for (int rank = 0; rank < size; ++rank) {
        const TreePlace place = tree_place(rank, size, 4);
        const std::size_t links = place.children.size() + (place.parent >= 0 ? 1 : 0);
        const auto index = static_cast<std::size_t>(rank);
        EXPECT_EQ(after[index] - before[index], 2 * links) << "rank " << rank << " of " << size << ", cycle " << cycle;
        EXPECT_EQ(executed(job.take(rank)), "t0 t1 t2 t3 t4");
      }
    }
  }
}

TEST(Tree, CachedCyclesHaveTheSameBytesOnAWholeSubtreeAsOnOneRank) {
  Simulation job = tree(256, 8);
  for (int cycle = 0; cycle < 3; ++cycle) {
    const std::uint64_t before = job.at(0).counters().bytes;
    job.submit_everywhere(allreduce("t"));
    job.settle();
    if (cycle < 2) continue;
    WorkerNews news;
    news.cached = {1};
    const Bytes one = encode(news);
    const Bytes decided = encode(Decisions{1, {BatchDecision{1, {{1, ""}}, {}, 0, {}, {}}}});
    EXPECT_EQ(job.at(0).counters().bytes - before, 8 * (one.size() + decided.size()));
  }
}

TEST(Tree, WhatOneRankLacksIsHeldUntilItComes) {
  Simulation job = tree(7, 2);  // 0: 1 (2, 3) and 4 (5, 6)
  for (int rank = 0; rank < 7; ++rank) {
    if (rank != 3) job.submit(rank, allreduce("a"));
  }
  const std::uint64_t before = job.at(0).counters().messages;
  job.settle();
  EXPECT_EQ(job.at(0).counters().messages - before, 1u);  // of rank 4, for itself, 5 and 6
  EXPECT_EQ(job.at(1).next_wake_ns(), job.now_ns + Aggregator::kHoldNs);
  job.submit(3, allreduce("a"));
  job.settle();
  EXPECT_EQ(job.at(0).counters().messages - before, 4u);  // of rank 1, and the decision to both
  for (int rank = 0; rank < 7; ++rank) EXPECT_EQ(executed(job.take(rank)), "a");
}

TEST(Tree, AStallNamesTheRankThatIsMissingDeepBelow) {
  Simulation job = tree(15, 2, {1000 * kTreeMillisecond, 0});
  for (int rank = 0; rank < 15; ++rank) {
    if (rank != 4 && rank != 13) job.submit(rank, allreduce("a"));
  }
  job.settle();
  for (int i = 0; i < 3; ++i) {  // a level a time
    job.now_ns += Aggregator::kHoldNs;
    job.settle();
  }
  job.now_ns += 1000 * kTreeMillisecond;
  job.settle();
  const std::vector<Action> actions = job.take(0);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(std::get<StallAction>(actions[0]).missing, (std::vector<int>{4, 13}));
  for (const int rank : {4, 13}) job.submit(rank, allreduce("a"));
  job.settle();
  for (int rank = 0; rank < 15; ++rank) EXPECT_EQ(executed(job.take(rank)), "a") << rank;
}

TEST(Tree, AMismatchIsToldToAllWithTheRanksOfEachShape) {
  Simulation job = tree(10, 3);
  for (int rank = 0; rank < 10; ++rank) job.submit(rank, allreduce("a", {rank == 6 || rank == 8 ? 5 : 4}));
  job.settle();
  const std::string message = failure(job.take(9));
  EXPECT_NE(message.find("[5] on ranks 6, 8"), std::string::npos) << message;
  for (int rank = 0; rank < 9; ++rank) EXPECT_EQ(failure(job.take(rank)), message);
  job.submit_everywhere(allreduce("a"));
  job.settle();
  EXPECT_EQ(executed(job.take(6)), "a");
}

TEST(Tree, JoinedRanksAreNotWaitedFor) {
  Simulation job = tree(15, 2);
  for (const int rank : {1, 3, 14}) job.submit(rank, join());
  job.settle();
  for (int cycle = 0; cycle < 3; ++cycle) {
    for (int rank = 0; rank < 15; ++rank) {
      if (rank != 1 && rank != 3 && rank != 14) job.submit(rank, allreduce("a"));
    }
    job.settle();
    EXPECT_EQ(executed(job.take(0)), "a");
    EXPECT_EQ(std::get<ExecuteAction>(job.take(3).at(0)).absent.size(), 1u);
    job.forget();
  }
  for (int rank = 0; rank < 15; ++rank) {
    if (rank != 1 && rank != 3 && rank != 14) job.submit(rank, join());
  }
  job.settle();
  for (int rank = 0; rank < 15; ++rank) {
    EXPECT_EQ(job.take(rank), (std::vector<Action>{JoinAction{"join.noname", 13}})) << rank;
  }
  job.submit_everywhere(allreduce("a"));
  job.settle();
  EXPECT_EQ(executed(job.take(14)), "a");
}

TEST(Tree, SetsThatLieAcrossSubtreesComeAndGo) {
  Simulation job = tree(12, 2);
  const std::vector<std::int32_t> members{2, 3, 7, 11};
  job.submit_everywhere(add_set(members));
  job.settle();
  job.forget();
  for (int cycle = 0; cycle < 3; ++cycle) {
    for (const int rank : members) job.submit(rank, in_set(1, allreduce("s")));
    job.settle();
    for (int rank = 0; rank < 12; ++rank) {
      const bool in = std::count(members.begin(), members.end(), rank) > 0;
      EXPECT_EQ(executed(job.take(rank)), in ? "s" : "") << rank;
    }
  }
  job.submit(3, in_set(1, allreduce("s")));  // pending when the set goes
  job.submit_everywhere(remove_set(1));
  job.settle();
  job.now_ns += 4 * Aggregator::kHoldNs;
  job.settle();
  EXPECT_NE(failure(job.take(3)).find("process set 1"), std::string::npos);
}

TEST(Tree, ALeaverFailsWhatNeedsItAndItsRankStaysForThoseBelow) {
  Simulation job = tree(7, 2);
  job.submit_everywhere(add_set({2, 3, 5}));
  job.settle();
  job.forget();
  job.submit(6, allreduce("a"));
  job.submit(1, allreduce("a"));
  job.at(1).leave();
  for (int i = 0; i < 3; ++i) {
    job.settle();
    job.now_ns += Aggregator::kHoldNs;
  }
  EXPECT_TRUE(job.at(1).has_left());
  EXPECT_FALSE(job.at(1).free_to_go()) << "the messages of ranks 2 and 3 come through it";
  EXPECT_NE(failure(job.take(6)).find("rank 1 has shut down"), std::string::npos);
  for (const int rank : {2, 3, 5}) job.submit(rank, in_set(1, allreduce("s")));
  job.settle();
  for (const int rank : {2, 3, 5}) EXPECT_EQ(executed(job.take(rank)), "s");
  for (const int rank : {2, 3, 4, 5, 6, 0}) job.at(rank).leave();
  for (int i = 0; i < 3; ++i) {
    job.settle();
    job.now_ns += Aggregator::kHoldNs;
  }
  for (int rank = 0; rank < 7; ++rank) EXPECT_TRUE(job.at(rank).free_to_go()) << rank;
}

TEST(Tree, WhoLeavesAfterRankZeroIsStillCounted) {
  for (const int last : {1, 2, 3}) {  // 0 - 1 - 2 - 3
    Simulation job = tree(4, 1);
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == last) continue;
      job.at(rank).leave();
      job.settle();
    }
    EXPECT_FALSE(job.at(0).free_to_go());
    for (int rank = 1; rank < last; ++rank) EXPECT_FALSE(job.at(rank).free_to_go()) << rank;
    job.at(last).leave();
    job.settle();
    for (int rank = 0; rank < 4; ++rank) EXPECT_TRUE(job.at(rank).free_to_go()) << rank << " after " << last;
  }
}

TEST(Tree, AllWhoLeaveTogetherSayItInOneMessageOfEachSubtree) {
  Simulation job = tree(73, 8);
  const std::uint64_t before = job.at(0).counters().messages;
  for (int rank = 72; rank >= 0; --rank) job.at(rank).leave();
  for (int rank = 72; rank >= 0; --rank) job.turn(rank);
  job.settle();
  for (int rank = 0; rank < 73; ++rank) EXPECT_TRUE(job.at(rank).free_to_go()) << rank;
  EXPECT_LE(job.at(0).counters().messages - before, 8u + 2 * 8u);
}

TEST(Tree, NumbersEvictedWhileTheyAreHeldAreStillUnderstood) {
  Knobs knobs = Simulation::immediate();
  knobs.cache_capacity = 1;
  Simulation job(7, knobs, {}, false, 2);
  for (int cycle = 0; cycle < 4; ++cycle) {
    for (const char* name : {"a", "b"}) {
      for (const int rank : {1, 2, 4, 5, 6, 0}) job.submit(rank, allreduce(name));
      job.settle();
    }
    job.submit(3, allreduce("b"));
    job.settle();
    job.submit(3, allreduce("a"));
    job.settle();
    for (int rank = 0; rank < 7; ++rank) EXPECT_EQ(executed(job.take(rank)), "b|a") << rank;
  }
}

TEST(Tree, StepsAreCountedOverAllRanks) {
  Simulation job = tree(20, 3);
  for (std::uint32_t step = 1; step < 4; ++step) {
    for (int rank = 0; rank < 20; ++rank) job.at(rank).report_step({step, 100 + (rank == 17 ? step : 0)});
    job.submit_everywhere(allreduce("a"));
    job.settle();
    EXPECT_EQ(job.at(0).world_step(), (StepReport{step, 100 + step}));
  }
}

TEST(Tree, ProposedKnobsReachAllBetweenTheSameBatches) {
  Simulation job = tree(15, 2);
  job.submit_everywhere(allreduce("a"));
  job.settle();
  Knobs knobs = Simulation::immediate();
  knobs.fusion_bytes = 7;
  const std::uint32_t knobs_version = job.at(0).propose(knobs);
  job.submit_everywhere(allreduce("b"));
  job.settle();
  const std::vector<Action> reference = job.take(0);
  ASSERT_EQ(reference.size(), 3u);
  EXPECT_EQ(std::get<ApplyKnobsAction>(reference[1]), (ApplyKnobsAction{knobs_version, knobs}));
  for (int rank = 1; rank < 15; ++rank) EXPECT_EQ(job.take(rank), reference) << rank;
}

TEST(Tree, StrangersAndThoseWhoSpeakForOthersAreTurnedAway) {
  Simulation job = tree(7, 2);
  const auto say = [&](int to, int from, WorkerNews news) { job.at(to).peer_message(from, std::move(news), 1, 0); };
  const auto asks = [](int rank) {
    WorkerNews news;
    news.seen = 1;
    news.requests = {{std::make_shared<const Request>(allreduce("a")), RankSet::one(rank)}};
    return news;
  };
  EXPECT_THROW(say(1, 4, asks(4)), Protocol);  // no child of 1
  EXPECT_THROW(say(0, 2, asks(2)), Protocol);  // its news goes through 1
  EXPECT_THROW(say(1, 2, asks(3)), Protocol);
  WorkerNews unknown;
  unknown.seen = 1;
  unknown.cached = {99};
  EXPECT_THROW(say(1, 2, unknown), Protocol);
  say(1, 2, asks(2));
  EXPECT_THROW(say(1, 2, asks(2)), Protocol);                                 // twice
  EXPECT_THROW(job.at(2).peer_message(0, Decisions{2, {}}, 1, 0), Protocol);  // not from its parent
}

}  // namespace
}  // namespace ringtune
