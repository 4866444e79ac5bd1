// Members that have got onto one core although there is another one for them.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>

#include "base/cores.h"
#include "shm_groups.h"
#include "transport/affinity_balancer.h"

namespace ringtune {
namespace {

constexpr std::uint64_t kMostRounds = 500;

using testing_support::expect_reduced;
using testing_support::options_of;
using testing_support::run_shm_group;

void bind_this_thread(std::initializer_list<int> cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(static_cast<std::size_t>(core), &set);
  ASSERT_EQ(::sched_setaffinity(0, sizeof set, &set), 0);
}

/// Keeps a core busy at low priority: what makes the kernel wake the members on the other one.
class Busy {
 public:
  explicit Busy(int core)
      : thread_([this, core] {
          bind_this_thread({core});
          ASSERT_EQ(::setpriority(PRIO_PROCESS, 0, 10), 0);
          while (!ended_) {
          }
        }) {}
  ~Busy() {
    ended_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

TEST(SharedCore, MembersThatWaitForEachOtherOnOneCoreGoApart) {
  const CoreSet usable = usable_cores();
  std::vector<int> cores;
  for (std::size_t core = 0; core < usable.size(); ++core) {
    if (usable[core]) cores.push_back(static_cast<int>(core));
  }
  if (cores.size() < 2) GTEST_SKIP() << "there is one core only";
  const Busy busy(cores[1]);
  ShmGroupOptions options = options_of(1024, 2);
  options.spin_ns = 50'000;
  std::array<std::atomic<int>, 2> seen{};
  run_shm_group(2, options, [&](ShmGroup& shm_group, Fabric&) {
    bind_this_thread({cores[0]});
    expect_reduced(shm_group, 10, DType::kFloat32, ReduceOp::kSum, 1);  // both are there
    bind_this_thread({cores[0], cores[1]});
    std::uint64_t token = 2;
    bool apart = false;
    // A round takes as long as a wait spins there. Left alone by the kernel they were so for more than a thousand.
    while (!apart && token < kMostRounds) {
      const auto own = static_cast<std::size_t>(shm_group.position());
      seen[own] = current_core();
      expect_reduced(shm_group, 10, DType::kFloat32, ReduceOp::kSum, token++);
      // The same on both: the other one writes again only when this one has been through the next round.
      apart = seen[0] != seen[1];
      expect_reduced(shm_group, 10, DType::kFloat32, ReduceOp::kSum, token++);
    }
    EXPECT_TRUE(apart) << "after " << token << " rounds";
  });
}

}  // namespace
}  // namespace ringtune
