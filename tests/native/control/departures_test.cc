// What ranks that wait for one that has left learn: whose error it was, not who left because of it.
#include "control/departures.h"

#include <gtest/gtest.h>

#include "control/simulation.h"

namespace ringtune {
namespace {

using testing_support::allreduce;
using testing_support::failure;
using testing_support::Simulation;

Departure raised(const std::string& who) {
  return {.who = who, .how = "ended its script with ValueError: x", .failed = true};
}

TEST(Departures, TheFirstErrorIsTheCauseWhoeverIsWaitedFor) {
  Departures departures;
  departures.note({2, "rank 2 on host c", "has come to the end of its script", false});
  departures.note({1, "rank 1 on host b", "ended its script with ValueError: x", true});
  departures.note({0, "rank 0 on host a", "ended its script with ShutDown: y", true});
  const std::string cause = "rank 1 on host b ended its script with ValueError: x, while 'a' (allreduce) waited for ";
  EXPECT_EQ(departures.message(allreduce("a"), RankSet::range(0, 2)), cause + "it");
  EXPECT_EQ(departures.message(allreduce("a"), RankSet::one(0)), cause + "rank 0, which left after that");
}

TEST(Departures, WithoutAnErrorThoseThatLeftAreNamed) {
  Departures departures;
  departures.note({2, "rank 2 on host c", "has come to the end of its script", false});
  departures.note({1, "", "", false});
  EXPECT_EQ(departures.message(allreduce("a"), RankSet::range(1, 7)),
            "tensor 'a' (allreduce) cannot complete: rank 1 has shut down, rank 2 on host c has come to the end of its "
            "script, rank 3 has shut down and 3 more. All ranks must run the same collectives before shutdown().");
}

TEST(Departures, EveryRankOfATreeGetsTheCauseInWhateverOrderTheRanksLeave) {
  for (const int victim : {0, 1, 3, 6}) {
    Simulation job(7, Simulation::immediate(), {}, false, 2);
    const auto settle = [&] {
      for (int i = 0; i < 3; ++i) {
        job.settle();
        job.now_ns += Aggregator::kHoldNs;
      }
    };
    job.at(victim).leave(raised("rank " + std::to_string(victim) + " on host h"));
    const int waiting = victim == 5 ? 4 : 5;
    job.submit(waiting, allreduce("a"));
    settle();
    const std::string cause =
        "rank " + std::to_string(victim) + " on host h ended its script with ValueError: x, while ";
    EXPECT_EQ(failure(job.take(waiting)), cause + "'a' (allreduce) waited for it");
    job.at(waiting).leave({.who = "rank 5", .how = "ended its script with ShutDown: y", .failed = true});
    settle();
    job.forget();
    job.submit(2, allreduce("late"));
    settle();
    EXPECT_EQ(failure(job.take(2)), cause + "'late' (allreduce) waited for it");
  }
}

}  // namespace
}  // namespace ringtune
