// Whole jobs over trees of random shape: allreduces, tensors that do not match, process sets, joins and departures in
// random order and with random delays. All ranks must see the same, nothing may hang or get lost.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "control/simulation.h"

namespace ringtune {
namespace {

using testing_support::add_set;
using testing_support::allreduce;
using testing_support::in_set;
using testing_support::join;
using testing_support::Simulation;

class RandomTree {
 public:
  explicit RandomTree(std::uint32_t seed)
      : random_(seed),
        job_(pick(2, 14), knobs(), {}, pick(0, 1) == 1, pick(1, 4)),
        ranks_(static_cast<std::size_t>(job_.size())) {}

  void run() {
    for (int rank = 0; rank < job_.size(); ++rank) {
      if (rank == 0 || pick(0, 1) == 0) members_.push_back(rank);
    }
    // Duplicates of the set of all ranks are refused.
    if (static_cast<int>(members_.size()) < job_.size()) {
      job_.submit_everywhere(add_set(members_));
      for (Rank& rank : ranks_) rank.open.insert("add_process_set");
      ASSERT_NO_FATAL_FAILURE(finish());
      has_set_ = true;
    }
    for (int knobs_version = 0; knobs_version < 2; ++knobs_version) {
      for (int step = 0; step < 6; ++step) ASSERT_NO_FATAL_FAILURE(run_step());
      ASSERT_NO_FATAL_FAILURE(run_join());
    }
    std::vector<int> order(ranks_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
    std::shuffle(order.begin(), order.end(), random_);
    for (const int rank : order) {
      job_.at(rank).leave();
      turn_some();
    }
    for (int i = 0; i < 20; ++i) {
      job_.settle();
      job_.now_ns += Aggregator::kHoldNs;
    }
    for (int rank = 0; rank < job_.size(); ++rank) ASSERT_TRUE(job_.at(rank).free_to_go()) << rank;
  }

 private:
  struct Rank {
    std::set<std::string> open;
    std::vector<std::string> global;  // what came of global tensors, in order
    std::vector<std::string> in_set;
  };

  int pick(int least, int most) {
    return least + static_cast<int>(random_() % static_cast<unsigned>(most - least + 1));
  }
  Knobs knobs() {
    Knobs knobs = Simulation::immediate();
    knobs.cycle_time_ns = pick(0, 2) * 1000;
    knobs.cache_capacity = static_cast<std::uint32_t>(pick(0, 9));
    knobs.fusion_bytes = static_cast<std::uint64_t>(16 * pick(1, 8));
    return knobs;
  }

  void run_step() {
    const int mismatch = pick(0, 9);
    std::vector<std::vector<Request>> programs;
    for (int rank = 0; rank < job_.size(); ++rank) {
      std::vector<Request>& program = programs.emplace_back();
      for (int i = 0; i < 5; ++i) {
        const bool other = i == mismatch && rank == job_.size() - 1;
        program.push_back(allreduce("t" + std::to_string(i), {other ? 9 : 4}));
      }
      const bool member = has_set_ && std::count(members_.begin(), members_.end(), rank) > 0;
      if (member) program.push_back(in_set(1, allreduce("s")));
      std::shuffle(program.begin(), program.end(), random_);
    }
    submit_all(programs);
    ASSERT_NO_FATAL_FAILURE(finish());
  }

  /// Some join early, the others go on for a while.
  void run_join() {
    std::vector<std::vector<Request>> programs;
    for (int rank = 0; rank < job_.size(); ++rank) {
      std::vector<Request>& program = programs.emplace_back();
      const int last = rank == 0 ? 5 : pick(0, 5);
      for (int i = 0; i < last; ++i) program.push_back(allreduce("t" + std::to_string(i)));
      program.push_back(join());
    }
    submit_all(programs);
    ASSERT_NO_FATAL_FAILURE(finish());
  }

  void submit_all(const std::vector<std::vector<Request>>& programs) {
    std::vector<std::size_t> next(programs.size());
    for (std::size_t left = 1; left > 0;) {
      left = 0;
      for (std::size_t i = 0; i < programs.size(); ++i) left += programs[i].size() - next[i];
      const std::size_t rank = random_() % programs.size();
      if (next[rank] < programs[rank].size()) {
        const Request& request = programs[rank][next[rank]++];
        ranks_[rank].open.insert(request.name);
        job_.submit(static_cast<int>(rank), request);
      }
      turn_some();
    }
  }

  void turn_some() {
    job_.now_ns += pick(0, 9) == 0 ? Aggregator::kHoldNs / 2 : pick(0, 3000);
    for (int i = pick(0, 3); i > 0; --i) turn(pick(0, job_.size() - 1));
  }

  void turn(int rank) {
    job_.turn(rank);
    collect(rank);
  }

  /// Callers of all ranks block until everything is done.
  void finish() {
    for (int turns = 0;; ++turns) {
      ASSERT_LT(turns, 20'000) << "the job hangs";
      bool open = false;
      for (int rank = 0; rank < job_.size(); ++rank) {
        const bool waits = !ranks_[static_cast<std::size_t>(rank)].open.empty();
        job_.at(rank).set_waiting(waits);
        open = open || waits;
      }
      if (!open) break;
      job_.now_ns += pick(0, 200'000);
      ASSERT_NO_FATAL_FAILURE(turn(pick(0, job_.size() - 1)));
    }
    for (const Rank& rank : ranks_) ASSERT_EQ(rank.global, ranks_[0].global);
    for (const int rank : members_) ASSERT_EQ(ranks_[static_cast<std::size_t>(rank)].in_set, ranks_[0].in_set);
  }

  void collect(int index) {
    Rank& rank = ranks_[static_cast<std::size_t>(index)];
    const auto done = [&](const std::string& name, bool absent) {
      if (absent) return;
      ASSERT_EQ(rank.open.erase(name), 1u) << name << " on rank " << index;
    };
    for (const Action& action : job_.take(index)) {
      if (const auto* batch = std::get_if<ExecuteAction>(&action)) {
        for (const std::string& name : batch->names) {
          done(name, !batch->absent.empty());
          (batch->process_set == 0 ? rank.global : rank.in_set).push_back(name);
        }
      } else if (const auto* fail = std::get_if<FailAction>(&action)) {
        done(fail->name, false);
        rank.global.push_back("!" + fail->name);
      } else if (const auto* set = std::get_if<SetAction>(&action)) {
        done(set->name, false);
      } else if (const auto* joined = std::get_if<JoinAction>(&action)) {
        done(joined->name, false);
      }
    }
  }

  std::mt19937 random_;
  Simulation job_;
  std::vector<Rank> ranks_;
  std::vector<std::int32_t> members_;
  bool has_set_ = false;
};

TEST(Tree, RandomJobsOverTreesOfAnyShape) {
  for (std::uint32_t seed = 0; seed < testing_support::repeats(600); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomTree job(seed);
    job.run();
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace ringtune
