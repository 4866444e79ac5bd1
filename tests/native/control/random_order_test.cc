// Whatever the order in which ranks submit and messages arrive, all ranks execute the same batches in the same order
// and nothing is lost: driven with seeded random schedules.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "control/simulation.h"

namespace ringtune {
namespace {

using testing_support::allreduce;
using testing_support::executed;
using testing_support::Simulation;

class RandomSchedule : public testing::TestWithParam<unsigned> {};

TEST_P(RandomSchedule, AllRanksExecuteTheSame) {
  std::mt19937 random(GetParam());
  const auto pick = [&](int bound) { return static_cast<int>(random() % static_cast<unsigned>(bound)); };
  Knobs knobs = Simulation::immediate();
  knobs.cycle_time_ns = pick(3) * 500;
  knobs.fusion_bytes = static_cast<std::uint64_t>(64 * pick(8));
  knobs.cache_capacity = static_cast<std::uint32_t>(pick(6));
  Simulation job(2 + pick(6), knobs, {}, false, 1 + pick(7));
  constexpr int kTensors = 6;
  for (int step = 0; step < 8; ++step) {
    std::vector<std::vector<int>> orders;
    std::vector<std::size_t> positions(static_cast<std::size_t>(job.size()), 0);
    for (int rank = 0; rank < job.size(); ++rank) {
      std::vector<int>& order = orders.emplace_back();
      for (int i = 0; i < kTensors; ++i) order.push_back(i);
      std::shuffle(order.begin(), order.end(), random);
    }
    const auto shape = static_cast<std::int64_t>(1 + step / 4);  // every tensor changes its shape once
    for (int left = kTensors * job.size(); left > 0;) {
      const int rank = pick(job.size());
      std::size_t& position = positions[static_cast<std::size_t>(rank)];
      if (position < kTensors && pick(2) == 0) {
        const int index = orders[static_cast<std::size_t>(rank)][position++];
        job.submit(rank, allreduce("t" + std::to_string(index), {shape}));
        --left;
      }
      if (step == 5 && pick(10) == 0) {
        knobs.cache_capacity = static_cast<std::uint32_t>(pick(6));
        (void)job.at(0).propose(knobs);
      }
      job.now_ns += pick(300);
      job.turn(rank);
    }
    job.now_ns += 10'000;
    job.settle();
    std::vector<std::string> names;
    const std::vector<Action> reference = job.take(0);
    for (const Action& action : reference) {
      if (const auto* batch = std::get_if<ExecuteAction>(&action)) {
        names.insert(names.end(), batch->names.begin(), batch->names.end());
      }
    }
    std::sort(names.begin(), names.end());
    EXPECT_EQ(names, (std::vector<std::string>{"t0", "t1", "t2", "t3", "t4", "t5"})) << "step " << step;
    for (int rank = 1; rank < job.size(); ++rank) EXPECT_EQ(executed(job.take(rank)), executed(reference));
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomSchedule, testing::Range(0u, 200u));

}  // namespace
}  // namespace ringtune
