// Gradients that not every rank has, or that some have as a sparse tensor: who says what, and what all learn.
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "control/gradients.h"

namespace ringtune {
namespace {

using testing_support::add_set;
using testing_support::allreduce;
using testing_support::executed;
using testing_support::failure;
using testing_support::gradient;
using testing_support::in_set;
using testing_support::join;
using testing_support::member;
using testing_support::outcomes;
using testing_support::Simulation;

using enum Contribution;

void submit(Simulation& job, const std::vector<Contribution>& by_rank, const std::string& name = "g") {
  for (int rank = 0; rank < job.size(); ++rank)
    job.submit(rank, gradient(by_rank[static_cast<std::size_t>(rank)], name));
}

FailAction failed(FailureKind kind, const std::string& message, const std::string& name = "g") {
  return {kind, name, message, 0};
}

// --- alike on all ranks ---------------------------------------------------------------------------------------------

class GradientThatAllHaveAlike : public testing::TestWithParam<std::tuple<Contribution, int>> {};
INSTANTIATE_TEST_SUITE_P(Ranks, GradientThatAllHaveAlike,
                         testing::Combine(testing::Values(kDense, kNone, kSparse), testing::Values(1, 2, 3, 5)));

TEST_P(GradientThatAllHaveAlike, RunsByItsNumberAndInASchedule) {
  const auto [contribution, size] = GetParam();
  Simulation job(size, Simulation::immediate(), {}, true);
  std::uint64_t bytes = 0;
  for (int step = 0; step < 2; ++step) {
    const std::uint64_t before = job.at(0).counters().bytes;
    job.submit_everywhere(gradient(contribution, "a_rather_long_name_of_a_gradient"));
    job.settle();
    if (step > 0) {
      EXPECT_LE(job.at(0).counters().bytes - before, bytes / 2);
    }
    bytes = job.at(0).counters().bytes - before;
  }
  for (int step = 0; step < 3; ++step) {
    job.submit_everywhere(gradient(contribution, "a_rather_long_name_of_a_gradient"));
    job.settle();
  }
  EXPECT_TRUE(job.in_schedule());
  job.forget();
  const int before = job.messages;
  job.submit_everywhere(gradient(contribution, "a_rather_long_name_of_a_gradient"));
  job.settle();
  EXPECT_EQ(job.messages, before);
  for (int rank = 0; rank < size; ++rank) EXPECT_EQ(executed(job.take(rank)), "a_rather_long_name_of_a_gradient");
}

TEST(Uneven, EmptyOnesTravelInABatchWithTheOthers) {
  Simulation job(2);
  for (int rank = 0; rank < 2; ++rank) {
    job.submit(rank, gradient(kDense, "a"));
    job.submit(rank, gradient(kNone, "b"));
    job.submit(rank, gradient(kDense, "c"));
  }
  job.settle();
  EXPECT_EQ(executed(job.take(1)), "a b c");
}

TEST(Uneven, RanksThatHaveItAlikeMustStillAgreeAboutTheRest) {
  Simulation job(2);
  Request other = gradient(kNone);
  other.dtype = DType::kFloat64;
  job.submit(0, gradient(kNone));
  job.submit(1, other);
  job.settle();
  EXPECT_EQ(outcomes(job.take(0)).at("g"), FailureKind::kMismatch);
  EXPECT_EQ(outcomes(job.take(1)).at("g"), FailureKind::kMismatch);
}

// --- unlike ---------------------------------------------------------------------------------------------------------

struct UnlikeCase {
  const char* name;
  std::vector<Contribution> by_rank;
  FailureKind kind;
  const char* message;
};
void PrintTo(const UnlikeCase& c, std::ostream* out) { *out << c.name; }

class GradientThatRanksHaveUnlike : public testing::TestWithParam<UnlikeCase> {};
INSTANTIATE_TEST_SUITE_P(
    Table, GradientThatRanksHaveUnlike,
    testing::Values(
        UnlikeCase{"one_has_none",
                   {kDense, kNone},
                   FailureKind::kSomeAbsent,
                   "tensor 'g' has a dense gradient on rank 0, and no gradient on rank 1"},
        UnlikeCase{"rank_0_has_none",
                   {kNone, kDense, kDense},
                   FailureKind::kSomeAbsent,
                   "tensor 'g' has no gradient on rank 0, and a dense gradient on ranks 1, 2"},
        UnlikeCase{"only_the_last_has_it",
                   {kNone, kNone, kNone, kNone, kDense},
                   FailureKind::kSomeAbsent,
                   "tensor 'g' has no gradient on ranks 0-3, and a dense gradient on rank 4"},
        UnlikeCase{"sparse_and_dense",
                   {kSparse, kDense},
                   FailureKind::kSomeSparse,
                   "tensor 'g' has a sparse gradient on rank 0, and a dense gradient on rank 1"},
        UnlikeCase{"sparse_and_none",
                   {kNone, kSparse, kNone},
                   FailureKind::kSomeSparse,
                   "tensor 'g' has no gradient on ranks 0, 2, and a sparse gradient on rank 1"},
        UnlikeCase{"all_three",
                   {kDense, kNone, kSparse, kDense},
                   FailureKind::kSomeSparse,
                   "tensor 'g' has a dense gradient on ranks 0, 3, and no gradient on rank 1, and a sparse gradient on "
                   "rank 2"}),
    [](const auto& row) { return std::string(row.param.name); });

TEST_P(GradientThatRanksHaveUnlike, FailsOnAllOfThemAndRunsWhenAllSubmitItAlike) {
  const UnlikeCase& row = GetParam();
  for (const bool known : {false, true}) {  // whether the name has a number that the ranks may report it by
    Simulation job(static_cast<int>(row.by_rank.size()));
    if (known) {
      job.submit_everywhere(gradient(kDense));
      job.settle();
      job.forget();
    }
    submit(job, row.by_rank);
    job.settle();
    for (int rank = 0; rank < job.size(); ++rank) {
      EXPECT_EQ(job.take(rank), (std::vector<Action>{failed(row.kind, row.message)})) << rank;
    }
    for (const Contribution all : {kDense, kNone, kSparse}) {
      job.submit_everywhere(gradient(all));
      job.settle();
      for (int rank = 0; rank < job.size(); ++rank) EXPECT_EQ(executed(job.take(rank)), "g") << rank;
    }
  }
}

TEST_P(GradientThatRanksHaveUnlike, EndsAScheduleThatItWasPartOf) {
  const UnlikeCase& row = GetParam();
  Simulation job(static_cast<int>(row.by_rank.size()), Simulation::immediate(), {}, true);
  for (int step = 0; step < 5; ++step) {
    job.submit_everywhere(gradient(kDense));
    job.submit_everywhere(allreduce("other"));
    job.settle();
  }
  ASSERT_TRUE(job.in_schedule());
  job.forget();
  submit(job, row.by_rank);
  job.submit_everywhere(allreduce("other"));
  job.settle();
  for (int rank = 0; rank < job.size(); ++rank) {
    const std::vector<Action> actions = job.take(rank);
    EXPECT_EQ(failure(actions), row.message) << rank;
    EXPECT_EQ(executed(actions), "other") << rank;
  }
}

TEST(Uneven, OnlyThoseThatHaveItDenseMustAgreeAndTheyDoFirst) {
  Simulation job(4);
  job.submit(0, gradient(kSparse));
  job.submit(1, gradient(kDense, "g", {4}));
  job.submit(2, gradient(kNone));
  job.submit(3, gradient(kDense, "g", {5}));
  job.settle();
  const FailAction expected =
      failed(FailureKind::kMismatch,
             "Mismatched ALLREDUCE tensor shapes: One rank had shape [4], but another rank had shape [5]. "
             "Tensor 'g': shape [4] on rank 1; shape [5] on rank 3. Submit the same shape on every rank.");
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(job.take(rank), (std::vector<Action>{expected})) << rank;
  job.submit_everywhere(gradient(kDense));
  job.settle();
  EXPECT_EQ(executed(job.take(2)), "g");
}

TEST(Uneven, ItIsNotKnownBeforeTheLastRankHasSaidWhatItHas) {
  Simulation job(3);
  job.submit(0, gradient(kDense));
  job.submit(1, gradient(kNone));
  job.settle();
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(job.take(rank).empty());
  job.submit(2, gradient(kNone));
  job.settle();
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(outcomes(job.take(rank)).at("g"), FailureKind::kSomeAbsent) << rank;
}

TEST(Uneven, InAProcessSetItsMembersDecide) {
  Simulation job(4);
  job.submit_everywhere(add_set({1, 3}));
  job.settle();
  job.forget();
  job.submit(1, in_set(1, gradient(kNone)));
  job.submit(3, in_set(1, gradient(kDense)));
  for (int rank = 0; rank < 4; ++rank) job.submit(rank, gradient(kNone));  // of the same name, in the global set
  job.settle();
  for (const int rank : {0, 2}) EXPECT_EQ(executed(job.take(rank)), "g");
  for (const int rank : {1, 3}) {
    const std::vector<Action> actions = job.take(rank);
    EXPECT_EQ(executed(actions), "g");
    const FailAction expected{FailureKind::kSomeAbsent, "g",
                              "tensor 'g' has no gradient on rank 1, and a dense gradient on rank 3", 1};
    EXPECT_NE(std::find(actions.begin(), actions.end(), Action{expected}), actions.end());
  }
}

TEST(Uneven, RanksThatHaveJoinedHaveNoSay) {
  Simulation job(3);
  job.submit(1, join());
  job.settle();
  for (const Contribution all : {kNone, kDense}) {
    for (const int rank : {0, 2}) job.submit(rank, gradient(all));
    job.settle();
    EXPECT_EQ(executed(job.take(0)), "g");
    const auto batch = std::get<ExecuteAction>(job.take(1).at(0));
    ASSERT_EQ(batch.absent.size(), 1u);
    EXPECT_EQ(*batch.absent[0], gradient(all)) << "as many elements as the others have";
    EXPECT_EQ(executed(job.take(2)), "g");
  }
  job.submit(0, gradient(kNone));
  job.submit(2, gradient(kDense));
  job.settle();
  EXPECT_EQ(outcomes(job.take(0)).at("g"), FailureKind::kSomeAbsent);
  EXPECT_TRUE(job.take(1).empty());
  EXPECT_EQ(outcomes(job.take(2)).at("g"), FailureKind::kSomeAbsent);
}

// --- groups ---------------------------------------------------------------------------------------------------------

TEST(UnevenGroup, WaitsForItsOneMemberThatGoesAsRows) {
  for (const int culprit : {0, 1, 2}) {  // the first, one in the middle, the last
    Simulation job(2);
    for (int index = 0; index < 3; ++index) {
      const std::string name = std::to_string(index);
      job.submit(0, member(gradient(kDense, name), 3));
      job.submit(1, member(gradient(index == culprit ? kSparse : kDense, name), 3));
    }
    job.settle();
    for (int rank = 0; rank < 2; ++rank) {
      const auto found = outcomes(job.take(rank));
      ASSERT_EQ(found.size(), 3u);
      for (const auto& [name, kind] : found) {
        EXPECT_EQ(kind, name == std::to_string(culprit) ? FailureKind::kSomeSparse : FailureKind::kSomeAbsent) << name;
      }
    }
    for (int index = 0; index < 3; ++index) {  // the others again, a group without it
      if (index != culprit) job.submit_everywhere(member(gradient(kDense, std::to_string(index)), 2));
    }
    job.settle();
    const auto found = outcomes(job.take(1));
    EXPECT_EQ(found.size(), 2u);
    for (const auto& [name, kind] : found) EXPECT_EQ(kind, std::nullopt) << name;
  }
}

TEST(UnevenGroup, OthersAreToldWhichMemberItWas) {
  Simulation job(2);
  job.submit_everywhere(member(gradient(kDense, "a"), 2));
  job.submit(0, member(gradient(kNone, "b"), 2));
  job.submit(1, member(gradient(kDense, "b"), 2));
  job.settle();
  const std::string message = "tensor 'b' has no gradient on rank 0, and a dense gradient on rank 1";
  const std::vector<Action> expected{
      failed(FailureKind::kSomeAbsent, message, "b"),
      failed(FailureKind::kSomeAbsent, "another member of its group failed: " + message, "a")};
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(job.take(rank), expected);
  job.submit_everywhere(member(gradient(kDense, "a"), 2));
  job.submit_everywhere(member(gradient(kDense, "b"), 2));
  job.settle();
  EXPECT_EQ(executed(job.take(0)), "a b");
}

}  // namespace
}  // namespace ringtune
