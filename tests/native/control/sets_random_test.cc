// Whole jobs with process sets that come and go, ranks that join and schedules, all at random: nothing may hang, get
// lost or run twice, and the members of a set see the same batches in the same order.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>

#include "control/simulation.h"

namespace ringtune {
namespace {

using testing_support::add_set;
using testing_support::allreduce;
using testing_support::in_set;
using testing_support::join;
using testing_support::remove_set;
using testing_support::Rounds;
using testing_support::Simulation;

class RandomSets {
 public:
  RandomSets(std::uint32_t seed, Rounds rounds)
      : random_(seed),
        job_(2 + static_cast<int>(seed % 6), random_knobs(), {}, true, seed % 2 == 0 ? kDefaultFanOut : 2) {
    job_.use(rounds);
    ranks_.resize(static_cast<std::size_t>(job_.size()));
    for (int phase = 0; phase < 6; ++phase) {
      if (pick(2) == 0) change_sets();
      if (pick(3) == 0) {
        schedule_epoch_with_join();
      } else {
        schedule_steps();
      }
    }
  }

  void run() {
    for (int turns = 0; !all_done(); ++turns) {
      ASSERT_LT(turns, 300'000) << "the job hangs";
      job_.now_ns += pick(40'000);
      const int rank = pick(job_.size());
      if (pick(2) == 0) act(rank);
      if (pick(1000) == 0) (void)job_.at(0).propose(random_knobs());
      job_.turn(rank);
      collect(rank);
      if (testing::Test::HasFatalFailure()) return;
    }
    for (const Rank& rank : ranks_) {
      EXPECT_TRUE(rank.open.empty());
      for (const auto& [set, done] : rank.done) EXPECT_EQ(done, of_first_member(set)) << "set " << set;
    }
    for (int rank = 0; rank < job_.size(); ++rank) job_.at(rank).leave();
    job_.settle();
    for (int rank = 0; rank < job_.size(); ++rank) EXPECT_TRUE(job_.at(rank).has_left()) << rank;
  }
  [[nodiscard]] int rounds() const { return rounds_; }
  [[nodiscard]] int set_rounds() const { return set_rounds_; }

 private:
  static constexpr int kGlobal = -1;
  enum class What { kTensor, kWait, kAddSet, kRemoveSet, kJoin };
  struct Item {
    What what;
    int set = kGlobal;  // by the order in which the test makes them: numbers are given again
    Request request = {};
    std::vector<std::int32_t> members = {};
  };
  struct Rank {
    std::vector<Item> program;
    std::size_t next = 0;
    std::set<std::pair<std::uint32_t, std::string>> open;
    std::map<int, std::vector<std::string>> done;  // by set
    std::map<std::uint32_t, int> sets;             // by number: which one it is now
    int next_set = 0;
  };

  int pick(int below) { return static_cast<int>(random_() % static_cast<std::uint32_t>(below)); }

  Knobs random_knobs() {
    Knobs knobs = Simulation::immediate();
    knobs.fusion_bytes = pick(3) == 0 ? 64 : 1 << 20;
    knobs.cycle_time_ns = pick(3) == 0 ? 0 : 100'000;
    knobs.cache_capacity = pick(5) == 0 ? 3 : 100;
    knobs.schedule = pick(8) != 0;
    return knobs;
  }

  void everywhere(const Item& item) {
    for (Rank& rank : ranks_) {
      rank.program.push_back(item);
      rank.program.push_back({What::kWait});
    }
  }

  /// Adds a set of some ranks, or removes one.
  void change_sets() {
    if (!live_.empty() && pick(3) == 0) {
      const auto gone = std::next(live_.begin(), pick(static_cast<int>(live_.size())));
      everywhere({What::kRemoveSet, gone->first});
      live_.erase(gone);
      return;
    }
    std::vector<std::int32_t> members;
    for (int rank = 0; rank < job_.size(); ++rank) {
      if (pick(2) == 0) members.push_back(rank);
    }
    const bool twin = std::any_of(live_.begin(), live_.end(), [&](const auto& set) { return set.second == members; });
    if (members.empty() || static_cast<int>(members.size()) == job_.size() || twin) return;
    live_[made_] = members;
    everywhere({What::kAddSet, made_++, {}, members});
  }

  /// PersistentCollective steps, of all ranks or of sets alone, with tensors of the same names; the same in each step
  /// or not.
  void schedule_steps() {
    const int count = 6 + pick(8);
    const int tensors = live_.empty() ? 1 + pick(3) : pick(4);
    const bool changing = pick(3) == 0;
    const bool in_order = pick(2) == 0;
    std::map<int, int> of_set;
    for (const auto& [set, members] : live_) of_set[set] = pick(3);
    for (int step = 0; step < count; ++step) {
      std::vector<Item> items;
      for (int i = 0; i < tensors; ++i) items.push_back({What::kTensor, kGlobal, allreduce("t" + std::to_string(i))});
      for (const auto& [set, number] : of_set) {
        if (changing && pick(3) == 0) continue;
        const std::int64_t rows = changing ? step % 2 + 1 : 4;
        for (int i = 0; i < number; ++i) {
          items.push_back({What::kTensor, set, allreduce("t" + std::to_string(i), {rows})});
        }
      }
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        if (!in_order) std::shuffle(items.begin(), items.end(), random_);
        for (const Item& item : items) {
          if (is_member(item.set, static_cast<int>(rank))) ranks_[rank].program.push_back(item);
        }
        ranks_[rank].program.push_back({What::kWait});
      }
    }
  }

  /// Ranks run out of steps at different times and join.
  void schedule_epoch_with_join() {
    const int tensors = 1 + pick(3);
    for (Rank& rank : ranks_) {
      for (int step = 2 + pick(8); step > 0; --step) {
        for (int i = 0; i < tensors; ++i) {
          rank.program.push_back({What::kTensor, kGlobal, allreduce("t" + std::to_string(i))});
        }
        rank.program.push_back({What::kWait});
      }
      rank.program.push_back({What::kJoin});
      rank.program.push_back({What::kWait});
    }
  }

  [[nodiscard]] bool is_member(int set, int rank) const {
    if (set == kGlobal) return true;
    const auto& members = live_.at(set);
    return std::find(members.begin(), members.end(), rank) != members.end();
  }

  std::uint32_t number_of(const Rank& rank, int set) const {
    for (const auto& [number, which] : rank.sets) {
      if (which == set) return number;
    }
    return 0;
  }

  void act(int index) {
    Rank& rank = ranks_[static_cast<std::size_t>(index)];
    if (rank.next == rank.program.size()) return;
    const Item& item = rank.program[rank.next];
    if (item.what == What::kWait) {
      job_.at(index).set_waiting(!rank.open.empty());
      if (rank.open.empty()) ++rank.next;
      return;
    }
    Request request = item.request;
    if (item.what == What::kTensor) request = in_set(number_of(rank, item.set), request);
    if (item.what == What::kAddSet) request = add_set(item.members);
    if (item.what == What::kRemoveSet) request = remove_set(number_of(rank, item.set));
    if (item.what == What::kJoin) request = join();
    ASSERT_TRUE(rank.open.insert({request.process_set, request.name}).second) << request.name;
    job_.submit(index, request);
    ++rank.next;
  }

  void collect(int index) {
    Rank& rank = ranks_[static_cast<std::size_t>(index)];
    for (const Action& action : job_.take(index)) {
      if (const auto* batch = std::get_if<ExecuteAction>(&action)) {
        executed(rank, *batch);
      } else if (const auto* set = std::get_if<SetAction>(&action)) {
        ASSERT_EQ(rank.open.erase({0, set->name}), 1u) << set->name;
        if (set->added) rank.sets[set->id] = rank.next_set++;
        if (!set->added) rank.sets.erase(set->id);
      } else if (const auto* joined = std::get_if<JoinAction>(&action)) {
        ASSERT_EQ(rank.open.erase({0, joined->name}), 1u) << joined->name;
        rank.done[kGlobal].push_back("joined " + std::to_string(joined->last_rank));
      } else {
        ASSERT_TRUE(std::holds_alternative<ApplyKnobsAction>(action)) << "action " << action.index();
      }
    }
  }

  void executed(Rank& rank, const ExecuteAction& batch) {
    const int set = batch.process_set == 0 ? kGlobal : rank.sets.at(batch.process_set);
    for (const std::string& name : batch.names) {
      if (batch.absent.empty()) {
        ASSERT_EQ(rank.open.erase({batch.process_set, name}), 1u) << name << " ran and was not open";
      } else {
        ASSERT_EQ(rank.open.count({0, "join.noname"}), 1u) << name << " ran for a rank that has not joined";
      }
      rank.done[set].push_back(name);
    }
    if (batch.batch_id == 0) ++(set == kGlobal ? rounds_ : set_rounds_);
  }

  const std::vector<std::string>& of_first_member(int set) const {
    const auto first =
        std::find_if(ranks_.begin(), ranks_.end(), [&](const Rank& rank) { return rank.done.count(set) > 0; });
    return first->done.at(set);
  }

  [[nodiscard]] bool all_done() {
    for (const Rank& rank : ranks_) {
      if (rank.next < rank.program.size() || !rank.open.empty()) return false;
    }
    job_.settle();
    for (int rank = 0; rank < job_.size(); ++rank) collect(rank);
    return true;
  }

  std::mt19937 random_;
  Simulation job_;
  std::vector<Rank> ranks_;
  std::map<int, std::vector<std::int32_t>> live_;  // sets, while the programs are made
  int made_ = 0;
  int rounds_ = 0;
  int set_rounds_ = 0;
};

class RandomSetsAndSchedules : public testing::TestWithParam<Rounds> {};
INSTANTIATE_TEST_SUITE_P(DataPaths, RandomSetsAndSchedules, testing::Values(Rounds::kMemory, Rounds::kLinks));

TEST_P(RandomSetsAndSchedules, NeverHangNorRunATensorTwice) {
  int rounds = 0;
  int set_rounds = 0;
  for (std::uint32_t seed = 0; seed < testing_support::repeats(1500); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomSets job(seed, GetParam());
    job.run();
    if (testing::Test::HasFailure()) return;
    rounds += job.rounds();
    set_rounds += job.set_rounds();
  }
  EXPECT_GT(rounds, static_cast<int>(testing_support::repeats(1500))) << "schedules were hardly followed";
  EXPECT_GT(set_rounds, static_cast<int>(testing_support::repeats(1500))) << "schedules with sets were hardly followed";
}

}  // namespace
}  // namespace ringtune
