// How long tensors wait for ranks that do not come: timeouts of their own, and a coordinator that says nothing.
#include "control/stall.h"

#include <gtest/gtest.h>

#include "control/simulation.h"

namespace ringtune {
namespace {

using testing_support::add_set;
using testing_support::allreduce;
using testing_support::executed;
using testing_support::in_set;
using testing_support::join;
using testing_support::Simulation;

constexpr std::int64_t kStallMillisecond = 1'000'000;
constexpr std::int64_t kSecond = 1'000 * kStallMillisecond;
constexpr std::int64_t kNever = StallLimits::kNever;
constexpr std::int64_t kSilence = 400 * kStallMillisecond;  // how much later than rank 0 the others end the job

Request patient(const std::string& name, std::int64_t timeout_ns) {
  Request request = allreduce(name);
  request.timeout_ns = timeout_ns;
  return request;
}

std::vector<AbortAction> aborts(const std::vector<Action>& actions) {
  std::vector<AbortAction> found;
  for (const Action& action : actions) {
    if (const auto* abort = std::get_if<AbortAction>(&action)) found.push_back(*abort);
  }
  return found;
}

// --- limits ---------------------------------------------------------------------------------------------------------

TEST(StallLimits, TheShorterOfTheJobsAndTheTensorsTimeEndsTheJob) {
  struct Row {
    std::int64_t shutdown_ns, timeout_ns, expected;
  };
  for (const Row& row : {Row{0, 0, kNever}, Row{7, 0, 7}, Row{0, 5, 5}, Row{7, 5, 5}, Row{5, 7, 5}, Row{5, 5, 5}}) {
    EXPECT_EQ((StallLimits{60, row.shutdown_ns}.longest_wait_ns(patient("a", row.timeout_ns))), row.expected)
        << row.shutdown_ns << ", " << row.timeout_ns;
  }
}

TEST(StallLimits, ATensorIsLookedAtWhenAWarningOrItsEndIsDue) {
  struct Row {
    std::int64_t warning_ns, shutdown_ns, timeout_ns, expected;  // waits since 100, warned at 130
  };
  for (const Row& row : {Row{0, 0, 0, kNever}, Row{60, 0, 0, 190}, Row{0, 70, 0, 170}, Row{0, 0, 80, 180},
                         Row{60, 70, 0, 170}, Row{60, 95, 0, 190}, Row{60, 95, 80, 180}}) {
    const StallLimits limits{row.warning_ns, row.shutdown_ns};
    EXPECT_EQ(limits.due_ns(patient("a", row.timeout_ns), 100, 130), row.expected)
        << row.warning_ns << ", " << row.shutdown_ns << ", " << row.timeout_ns;
  }
}

TEST(StallLimits, MessageNamesTensorRanksAgeAndWhichLimitItWas) {
  EXPECT_EQ(overdue_message(patient("a", 2 * kSecond), 2'040 * kStallMillisecond, std::vector{1, 2, 3, 7}),
            "tensor 'a' (allreduce) has waited 2 s for ranks 1-3, 7, longer than its timeout: the job ends");
  EXPECT_EQ(overdue_message(patient("a", 9 * kSecond), 2'560 * kStallMillisecond, std::vector{1}),
            "tensor 'a' (allreduce) has waited 2.5 s for rank 1, longer than the stall shutdown time: the job ends");
  EXPECT_EQ(overdue_message(allreduce("a"), kSecond, std::vector{0}),
            "tensor 'a' (allreduce) has waited 1 s for rank 0, longer than the stall shutdown time: the job ends");
}

// --- at rank 0 ------------------------------------------------------------------------------------------------------

class TimeoutAtSize : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, TimeoutAtSize, testing::Values(2, 3, 9));

TEST_P(TimeoutAtSize, EndsTheJobOnEveryRankAtItsTimeAndNotBefore) {
  const int absent = GetParam() - 1;
  for (const std::int64_t warning_ns : {std::int64_t{0}, 60 * kSecond}) {
    Simulation job(GetParam(), Simulation::immediate(), {warning_ns, 0}, false, 2);
    for (int rank = 0; rank < absent; ++rank) job.submit(rank, patient("a", 2 * kSecond));
    job.settle();
    // Rank 0 also looks whether all ranks wait for one another.
    const std::int64_t look_ns = warning_ns > 0 ? StallLimits::kSuspiciousNs : 2 * kSecond;
    EXPECT_EQ(job.at(0).next_wake_ns(), job.now_ns + look_ns);
    job.now_ns += 2 * kSecond - 1;
    job.settle();
    for (int rank = 0; rank < job.size(); ++rank) EXPECT_TRUE(job.take(rank).empty()) << rank;
    job.now_ns += 1;
    job.settle();
    const AbortAction expected{"tensor 'a' (allreduce) has waited 2 s for rank " + std::to_string(absent) +
                               ", longer than its timeout: the job ends"};
    for (int rank = 0; rank < job.size(); ++rank) {
      EXPECT_EQ(aborts(job.take(rank)), (std::vector<AbortAction>{expected})) << rank;
    }
  }
}

TEST(Timeout, OfATensorThatCameTooLateToFailNobodyHearsAnything) {
  Simulation job(2, Simulation::immediate(), {60 * kSecond, 0});
  job.submit(1, patient("a", kSecond));
  job.settle();
  job.now_ns += kSecond - 1;
  job.submit(0, patient("a", kSecond));
  job.settle();
  job.now_ns += 10 * kSecond;
  job.settle();
  for (int rank = 0; rank < 2; ++rank) {
    const std::vector<Action> actions = job.take(rank);
    EXPECT_EQ(executed(actions), "a");
    EXPECT_TRUE(aborts(actions).empty());
    EXPECT_EQ(job.at(rank).next_wake_ns(), Worker::kNever);
  }
}

TEST(Timeout, ShorterOneOfALaterTensorComesFirst) {
  Simulation job(2, Simulation::immediate(), {0, 0});
  job.submit(0, patient("long", 10 * kSecond));
  job.settle();
  job.now_ns += kSecond;
  job.submit(0, patient("short", 2 * kSecond));
  job.submit(0, allreduce("without"));
  job.settle();
  EXPECT_EQ(job.at(0).next_wake_ns(), job.now_ns + 2 * kSecond);
  job.now_ns += 2 * kSecond;
  job.settle();
  const auto found = aborts(job.take(1));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].message.find("tensor 'short' (allreduce) has waited 2 s for rank 1, longer than its timeout"), 0u);
}

TEST(Timeout, RanksThatSubmitATensorWithDifferentTimesRunIt) {
  Simulation job(2);
  for (int step = 0; step < 3; ++step) {
    job.submit(0, patient("a", kSecond));
    job.submit(1, patient("a", step == 1 ? 2 * kSecond : 3 * kSecond));
    job.settle();
    EXPECT_EQ(executed(job.take(0)), "a");
    EXPECT_EQ(executed(job.take(1)), "a");
  }
}

TEST(Timeout, HoldsForATensorThatIsAnnouncedByItsNumber) {
  Simulation job(2, Simulation::immediate(), {0, 0});
  job.submit_everywhere(patient("a", kSecond));
  job.settle();
  job.forget();
  job.submit(1, patient("a", kSecond));
  job.settle();
  job.now_ns += kSecond;
  job.settle();
  EXPECT_EQ(aborts(job.take(0)).size(), 1u);
  EXPECT_EQ(aborts(job.take(1)).size(), 1u);
}

// --- a silent rank 0 ------------------------------------------------------------------------------------------------

TEST(SilentCoordinator, ATensorThatHasOutlivedItsTimeoutEndsTheJobHere) {
  Simulation job(2, Simulation::immediate(), {0, 0});
  job.submit(1, patient("a", 2 * kSecond));
  job.turn(1);
  EXPECT_EQ(job.at(1).next_wake_ns(), job.now_ns + 2 * kSecond + kSilence);
  job.now_ns += 2 * kSecond + kSilence - 1;
  job.turn(1);
  EXPECT_TRUE(job.take(1).empty());
  job.now_ns += 1;
  job.turn(1);
  const AbortAction expected{
      "tensor 'a' (allreduce) has waited 2.4 s for rank 0, longer than its timeout: the job ends", false};
  EXPECT_EQ(job.take(1), (std::vector<Action>{expected}));
}

TEST(SilentCoordinator, TheShortestTimeoutOfWhatIsPendingCounts) {
  Simulation job(3, Simulation::immediate(), {0, 0});
  job.submit(2, allreduce("without"));
  job.submit(2, patient("long", 5 * kSecond));
  job.submit(2, patient("short", kSecond));
  job.turn(2);
  job.now_ns += kSecond + kSilence;
  job.turn(2);
  const auto found = aborts(job.take(2));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].message.find("tensor 'short' (allreduce) has waited"), 0u);
}

TEST(SilentCoordinator, OneThatSpeaksIsTrustedForAnotherTimeout) {
  Simulation job(2, Simulation::immediate(), {0, 0});
  job.submit(1, patient("a", kSecond));
  job.submit(1, allreduce("b"));
  job.turn(1);
  job.now_ns += kSecond;
  job.submit(0, allreduce("b"));
  job.turn(0);  // gets the news only now: the tensor waits since now there
  job.turn(1);
  EXPECT_EQ(executed(job.take(1)), "b");
  EXPECT_LE(job.at(1).next_wake_ns(), job.now_ns + kSecond + kSilence);
  job.now_ns += kSilence;
  job.turn(1);  // looks, and has a message of rank 0 since
  EXPECT_TRUE(job.take(1).empty());
  EXPECT_EQ(job.at(1).next_wake_ns(), job.now_ns + kSecond);
  job.now_ns += kSecond - 1;
  job.turn(1);
  EXPECT_TRUE(job.take(1).empty());
  job.now_ns += 1;
  job.turn(1);
  EXPECT_EQ(aborts(job.take(1)).size(), 1u);
}

TEST(SilentCoordinator, TensorsWithoutATimeoutWaitForEver) {
  Simulation job(2, Simulation::immediate(), {0, 0});
  job.submit(1, allreduce("a"));
  job.turn(1);
  EXPECT_EQ(job.at(1).next_wake_ns(), Worker::kNever);
  job.now_ns += 1'000'000 * kSecond;
  job.turn(1);
  EXPECT_TRUE(job.take(1).empty());
}

TEST(SilentCoordinator, RankZeroIsNoneOfItself) {
  Simulation job(1, Simulation::immediate(), {0, 0});
  job.submit(0, patient("a", kSecond));
  job.settle();
  job.now_ns += 10 * kSecond;
  job.settle();
  const std::vector<Action> actions = job.take(0);
  EXPECT_EQ(executed(actions), "a");
  EXPECT_TRUE(aborts(actions).empty());
}

// --- whom a tensor waits for ----------------------------------------------------------------------------------------

TEST(Awaited, AreTheMembersThatHaveNotAnnouncedItAndHaveNotJoined) {
  Simulation job(5, Simulation::immediate(), {}, false, 2);
  job.submit_everywhere(add_set({1, 2, 4}));
  job.settle();
  job.submit(2, in_set(1, allreduce("s")));
  job.submit(1, allreduce("a"));
  job.submit(3, allreduce("a"));
  job.settle();
  for (int level = 0; level < 2; ++level) {  // ranks in the middle keep to themselves what only some below reported
    job.now_ns += Aggregator::kHoldNs;
    job.settle();
  }
  EXPECT_EQ(job.at(0).awaited({0, "a"}).ranks(), (std::vector{0, 2, 4}));
  EXPECT_EQ(job.at(0).awaited({1, "s"}).ranks(), (std::vector{1, 4}));
  EXPECT_TRUE(job.at(0).awaited({0, "s"}).empty()) << "of another set";
  EXPECT_TRUE(job.at(0).awaited({0, "unknown"}).empty());
  EXPECT_TRUE(job.at(0).awaited({7, "a"}).empty()) << "of no set";
  job.submit(4, join());
  job.settle();
  EXPECT_EQ(job.at(0).awaited({0, "a"}).ranks(), (std::vector{0, 2}));
  for (const int rank : {0, 2}) job.submit(rank, allreduce("a"));
  job.settle();
  EXPECT_TRUE(job.at(0).awaited({0, "a"}).empty()) << "it has run";
}

// --- all wait for one another
// -----------------------------------------------------------------------------------------

std::vector<std::string> suspects(const std::vector<Action>& actions) {
  std::vector<std::string> names;
  for (const Action& action : actions) {
    const auto* suspicion = std::get_if<SuspicionAction>(&action);
    if (suspicion == nullptr) continue;
    for (const StallAction& tensor : suspicion->tensors) names.push_back(tensor.name + " " + rank_list(tensor.missing));
  }
  return names;
}

TEST(Suspicion, IsRaisedWhenEveryRankHasATensorThatWaitsAndNothingNewComes) {
  Simulation job(3, Simulation::immediate(), {60 * kSecond, 0});
  job.submit(0, allreduce("a"));
  job.submit(1, allreduce("b"));
  job.settle();
  job.now_ns += StallLimits::kSuspiciousNs;
  job.settle();
  EXPECT_TRUE(suspects(job.take(0)).empty()) << "rank 2 may come to both";
  job.submit(2, allreduce("b"));
  job.settle();
  job.now_ns += 2 * StallLimits::kSuspiciousNs;
  job.settle();
  EXPECT_EQ(suspects(job.take(0)), (std::vector<std::string>{"a 1, 2", "b 0"}));
  job.now_ns += 2 * StallLimits::kSuspiciousNs;
  job.settle();
  EXPECT_TRUE(suspects(job.take(0)).empty()) << "it is not looked into all the time";
  job.submit(0, allreduce("b"));
  job.submit(1, allreduce("a"));
  job.submit(2, allreduce("a"));
  job.settle();
  EXPECT_EQ(job.at(0).next_wake_ns(), Worker::kNever);
}

TEST(Suspicion, IsOffWithTheStallCheck) {
  Simulation job(2, Simulation::immediate(), {0, 0});
  job.submit(0, allreduce("a"));
  job.submit(1, allreduce("b"));
  job.settle();
  EXPECT_EQ(job.at(0).next_wake_ns(), Worker::kNever);
}

TEST(StallWarning, TellsOfTheTensorsOfOneStepTogether) {
  Simulation job(2, Simulation::immediate(), {kSecond, 0});
  for (const char* name : {"a", "b", "c"}) {
    job.submit(0, allreduce(name));
    job.settle();
    job.now_ns += 40 * kStallMillisecond;
  }
  job.now_ns += kSecond - 3 * 40 * kStallMillisecond;
  job.settle();
  std::size_t stalls = 0;
  for (const Action& action : job.take(0)) stalls += std::holds_alternative<StallAction>(action) ? 1 : 0;
  EXPECT_EQ(stalls, 3U);
}

}  // namespace
}  // namespace ringtune
