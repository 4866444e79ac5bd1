// Process sets through whole runtimes.
#include <gtest/gtest.h>

#include "base/error.h"
#include "runtime/job.h"

namespace ringtune {
namespace {

using testing_support::allreduce_of;
using testing_support::finish;
using testing_support::Job;

constexpr std::int64_t kLimitNs = 10'000'000'000;

std::uint32_t add_set(Runtime& runtime, const std::vector<int>& members) {
  const Ticket ticket = runtime.add_process_set(members);
  EXPECT_TRUE(runtime.wait(ticket, Deadline::after(kLimitNs)));
  const auto id = static_cast<std::uint32_t>(runtime.operation(ticket)->number);
  runtime.release(ticket);
  return id;
}

Submission in_set(std::uint32_t set, Submission submission) {
  submission.request.process_set = set;
  return submission;
}

TEST(RuntimeProcessSets, OneNameMayBeInFlightInSeveral) {
  Job job(3);
  job.on_every_rank([&](int rank) {
    const std::uint32_t low = add_set(job[rank], {0, 1});
    const std::uint32_t high = add_set(job[rank], {1, 2});
    for (int round = 0; round < 3; ++round) {
      std::vector<float> all(5, static_cast<float>(rank + 1));
      std::vector<float> lower(7, static_cast<float>(rank + 1));
      std::vector<float> upper(3, static_cast<float>(rank + 1));
      std::vector<Ticket> tickets;
      if (rank <= 1) tickets.push_back(job[rank].submit(in_set(low, allreduce_of("x", lower))));
      if (rank >= 1) tickets.push_back(job[rank].submit(in_set(high, allreduce_of("x", upper, ReduceOp::kMax))));
      tickets.push_back(job[rank].submit(allreduce_of("x", all)));
      for (const Ticket ticket : tickets) finish(job[rank], ticket);
      EXPECT_EQ(all, std::vector<float>(5, 6.0f));
      EXPECT_EQ(lower, std::vector<float>(7, 3.0f)) << "1 + 2; rank 2 is no member and has its own 3";
      EXPECT_EQ(upper, std::vector<float>(3, rank >= 1 ? 3.0f : 1.0f));
    }
  });
}

TEST(RuntimeProcessSets, AFailureInOneLeavesTheNameInTheOthersAlone) {
  Job job(3);
  job.on_every_rank([&](int rank) {
    const std::uint32_t pair = add_set(job[rank], {0, 1});
    std::vector<float> bad(static_cast<std::size_t>(rank) + 1, 1.0f);
    std::vector<float> good(4, 1.0f);
    const Ticket other = job[rank].submit(allreduce_of("x", good));
    if (rank < 2) {
      const Ticket failing = job[rank].submit(in_set(pair, allreduce_of("x", bad)));
      EXPECT_THROW((void)job[rank].wait(failing, Deadline::after(kLimitNs)), Mismatch);
      job[rank].release(failing);
    }
    finish(job[rank], other);
    EXPECT_EQ(good, std::vector<float>(4, 3.0f));
  });
}

}  // namespace
}  // namespace ringtune
