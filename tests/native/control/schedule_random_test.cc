// Whole jobs that enter and leave schedules at random: nothing may hang, get lost or run twice.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <set>

#include "control/simulation.h"

namespace ringtune {
namespace {

using testing_support::allreduce;
using testing_support::Rounds;
using testing_support::Simulation;

/// Ranks that run the same steps at their own pace: most steps alike, some with a tensor more, less or of another
/// shape, in another order on each rank, with blocked callers between or at the end, and knobs that change meanwhile.
/// Half of the jobs have other collectives than allreduces in every step.
class RandomJob {
 public:
  RandomJob(std::uint32_t seed, int size, int fan_out, Rounds rounds)
      : random_(seed), knobs_(Simulation::immediate()), job_(size, random_knobs(), {}, true, fan_out) {
    job_.use(rounds);
    ranks_.resize(static_cast<std::size_t>(size));
    for (int step = 0; step < 24; ++step) schedule_step(step);
  }

  void run() {
    int turns = 0;
    while (!all_done()) {
      ASSERT_LT(++turns, 200'000) << "the job hangs";
      job_.now_ns += static_cast<std::int64_t>(random_() % 40'000);
      const int rank = static_cast<int>(random_() % ranks_.size());
      if (random_() % 2 == 0) act(rank);
      if (random_() % 400 == 0) (void)job_.at(0).propose(random_knobs());
      job_.turn(rank);
      collect(rank);
    }
    for (const Rank& rank : ranks_) {
      EXPECT_EQ(rank.done, ranks_[0].done);
      EXPECT_EQ(rank.epochs, ranks_[0].epochs);
    }
    for (int rank = 0; rank < job_.size(); ++rank) job_.at(rank).leave();
    job_.settle();
    for (int rank = 0; rank < job_.size(); ++rank) EXPECT_TRUE(job_.at(rank).has_left()) << rank;
  }
  [[nodiscard]] int rounds() const { return rounds_; }

 private:
  struct Rank {
    std::vector<std::optional<Request>> program;  // none: wait for everything
    std::size_t next = 0;
    std::set<std::string> open;
    std::vector<std::string> done;  // in order of execution, with knobs changes between
    std::vector<std::size_t> epochs;
  };

  Knobs random_knobs() {
    knobs_.fusion_bytes = random_() % 3 == 0 ? 64 : 1 << 20;
    knobs_.cycle_time_ns = random_() % 3 == 0 ? 0 : 100'000;
    knobs_.cache_capacity = random_() % 5 == 0 ? 3 : 100;
    knobs_.schedule = random_() % 8 != 0;
    return knobs_;
  }

  void schedule_step(int step) {
    const bool blocking = step / 8 % 2 == 1;
    std::vector<Request> tensors;
    for (int i = 0; i < 6; ++i) tensors.push_back(allreduce("t" + std::to_string(i)));
    if (mixed_) {
      tensors[1].kind = CollectiveKind::kAllgather;
      tensors[4].kind = CollectiveKind::kBroadcast;
    }
    switch (random_() % 10) {
      case 0:
        tensors.push_back(allreduce("extra" + std::to_string(random_() % 2)));
        break;
      case 1:
        tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(random_() % tensors.size()));
        break;
      case 2:
        tensors[random_() % tensors.size()].shape = {7};
        break;
      case 3: {
        Request barrier;
        barrier.name = "barrier";
        barrier.kind = CollectiveKind::kBarrier;
        barrier.shape = {0};
        tensors.push_back(barrier);
        break;
      }
      default:
        break;
    }
    for (Rank& rank : ranks_) {
      if (!blocking) std::shuffle(tensors.begin(), tensors.end(), random_);
      for (const Request& tensor : tensors) {
        rank.program.emplace_back(tensor);
        if (blocking) rank.program.emplace_back(std::nullopt);
      }
      rank.program.emplace_back(std::nullopt);
    }
  }

  void act(int index) {
    Rank& rank = ranks_[static_cast<std::size_t>(index)];
    if (rank.next == rank.program.size()) return;
    if (const auto& request = rank.program[rank.next]) {
      ASSERT_TRUE(rank.open.insert(request->name).second);
      job_.submit(index, *request);
      ++rank.next;
    } else {
      job_.at(index).set_waiting(!rank.open.empty());
      if (rank.open.empty()) ++rank.next;
    }
  }

  void collect(int index) {
    Rank& rank = ranks_[static_cast<std::size_t>(index)];
    for (const Action& action : job_.take(index)) {
      if (const auto* batch = std::get_if<ExecuteAction>(&action)) {
        for (const std::string& name : batch->names) {
          ASSERT_EQ(rank.open.erase(name), 1u) << name << " ran and was not open on rank " << index;
          rank.done.push_back(name);
        }
        if (batch->batch_id == 0) ++rounds_;
      } else if (std::holds_alternative<ApplyKnobsAction>(action)) {
        rank.epochs.push_back(rank.done.size());
      } else {
        FAIL() << "no action but batches and knobs was expected: " << action.index();
      }
    }
  }

  [[nodiscard]] bool all_done() {
    for (const Rank& rank : ranks_) {
      if (rank.next < rank.program.size() || !rank.open.empty()) return false;
    }
    // Knobs proposed last are on their way.
    job_.settle();
    for (int rank = 0; rank < job_.size(); ++rank) collect(rank);
    return true;
  }

  std::mt19937 random_;
  bool mixed_ = random_() % 2 == 0;
  Knobs knobs_;
  Simulation job_;
  std::vector<Rank> ranks_;
  int rounds_ = 0;
};

class RandomSchedules : public testing::TestWithParam<Rounds> {};
INSTANTIATE_TEST_SUITE_P(DataPaths, RandomSchedules, testing::Values(Rounds::kMemory, Rounds::kLinks));

TEST_P(RandomSchedules, NeverHangNorRunATensorTwice) {
  int rounds = 0;
  for (std::uint32_t seed = 0; seed < testing_support::repeats(3000); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    // Half of them in a star, half in trees.
    const int fan_out = seed % 2 == 0 ? kDefaultFanOut : 1 + static_cast<int>(seed / 2 % 3);
    RandomJob job(seed, 2 + static_cast<int>(seed % 7), fan_out, GetParam());
    job.run();
    if (testing::Test::HasFailure()) return;
    rounds += job.rounds();
  }
  EXPECT_GT(rounds, static_cast<int>(testing_support::repeats(3000))) << "schedules were hardly followed";
}

}  // namespace
}  // namespace ringtune
