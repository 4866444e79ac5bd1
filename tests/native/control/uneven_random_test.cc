// Ranks that say at random what they have of their gradients: they end alike on all ranks, by the rule.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "control/gradients.h"

namespace ringtune {
namespace {

using testing_support::gradient;
using testing_support::member;
using testing_support::Outcomes;
using testing_support::outcomes;
using testing_support::repeats;
using testing_support::Simulation;

using enum Contribution;

/// What must become of a tensor that the ranks submit like this.
std::optional<FailureKind> outcome_of(const std::vector<Request>& by_rank) {
  const auto any = [&](auto&& holds) { return std::any_of(by_rank.begin(), by_rank.end(), holds); };
  const auto first_dense =
      std::find_if(by_rank.begin(), by_rank.end(), [](const Request& r) { return r.contribution == kDense; });
  if (any([&](const Request& r) { return r.contribution == kDense && r.shape != first_dense->shape; })) {
    return FailureKind::kMismatch;
  }
  if (!any([&](const Request& r) { return r.contribution != by_rank.front().contribution; })) return std::nullopt;
  return any([](const Request& r) { return r.contribution == kSparse; }) ? FailureKind::kSomeSparse
                                                                         : FailureKind::kSomeAbsent;
}

/// Ranks that submit the same names in an order of their own, some alone and some as a group, again and again.
class RandomGradients {
 public:
  explicit RandomGradients(std::uint32_t seed)
      : random_(seed), job_(2 + pick(4), random_knobs(), {}, pick(2) == 0, 1 + pick(4)) {}

  void run() {
    for (int step = 0; step < 12; ++step) {
      expected_.clear();
      schedule_step();
      submit_in_any_order();
      job_.now_ns += 1'000'000;
      job_.settle();
      for (int rank = 0; rank < job_.size(); ++rank) check(outcomes(job_.take(rank)), step, rank);
    }
  }

 private:
  int pick(int bound) { return static_cast<int>(random_() % static_cast<unsigned>(bound)); }

  Knobs random_knobs() {
    Knobs knobs = Simulation::immediate();
    knobs.cycle_time_ns = pick(3) * 500;
    knobs.fusion_bytes = static_cast<std::uint64_t>(64 * pick(4));
    knobs.cache_capacity = static_cast<std::uint32_t>(pick(4) == 0 ? pick(4) : 100);
    return knobs;
  }

  /// Most steps are alike on all ranks, so that numbers and schedules are used.
  void schedule_step() {
    programs_.assign(static_cast<std::size_t>(job_.size()), {});
    const int grouped = pick(4);
    const bool alike = pick(3) != 0;
    for (int index = 0; index < 5; ++index) {
      std::vector<Request> by_rank;
      for (std::vector<Request>& program : programs_) {
        const auto contribution = static_cast<Contribution>(alike || pick(2) == 0 ? 0 : pick(3));
        Request request = gradient(contribution, "t" + std::to_string(index), {!alike && pick(15) == 0 ? 5 : 4});
        if (index < grouped) request = member(std::move(request), static_cast<std::uint32_t>(grouped));
        by_rank.push_back(request);
        program.push_back(std::move(request));
      }
      expected_["t" + std::to_string(index)] = {outcome_of(by_rank), index < grouped};
    }
    for (std::vector<Request>& program : programs_) std::shuffle(program.begin(), program.end(), random_);
  }

  void submit_in_any_order() {
    for (std::size_t left = 5 * programs_.size(); left > 0;) {
      const int rank = pick(job_.size());
      std::vector<Request>& program = programs_[static_cast<std::size_t>(rank)];
      if (!program.empty() && pick(2) == 0) {
        job_.submit(rank, program.back());
        program.pop_back();
        --left;
      }
      job_.now_ns += pick(300);
      job_.turn(rank);
    }
  }

  void check(const Outcomes& found, int step, int rank) {
    ASSERT_EQ(found.size(), expected_.size()) << "step " << step << ", rank " << rank;
    std::vector<FailureKind> for_others;  // how members without a fault of their own may end
    for (const auto& [name, one] : expected_) {
      if (!one.grouped || !one.kind) continue;
      for_others.push_back(*one.kind == FailureKind::kSomeSparse ? FailureKind::kSomeAbsent : *one.kind);
    }
    for (const auto& [name, kind] : found) {
      const Expected& one = expected_.at(name);
      if (one.kind || !one.grouped || for_others.empty()) {
        EXPECT_EQ(kind, one.kind) << name << " in step " << step << " on rank " << rank;
      } else {
        ASSERT_TRUE(kind.has_value()) << name << " ran without its group in step " << step;
        EXPECT_NE(std::find(for_others.begin(), for_others.end(), *kind), for_others.end()) << name;
      }
    }
    if (rank == 0) first_ = found;
    EXPECT_EQ(found, first_) << "ranks differ in step " << step;
  }

  struct Expected {
    std::optional<FailureKind> kind;
    bool grouped;
  };

  std::mt19937 random_;
  Simulation job_;
  std::vector<std::vector<Request>> programs_;  // by rank
  std::map<std::string, Expected> expected_;
  Outcomes first_;  // of rank 0
};

class AnyGradients : public testing::TestWithParam<std::uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, AnyGradients, testing::Range(0u, repeats(300)));

TEST_P(AnyGradients, EndAlikeOnAllRanksByTheRule) { RandomGradients(GetParam()).run(); }

}  // namespace
}  // namespace ringtune
