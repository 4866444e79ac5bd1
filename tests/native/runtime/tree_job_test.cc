// Runtimes whose ready requests go through other ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <barrier>

#include "base/error.h"
#include "runtime/job.h"

namespace ringtune {
namespace {

using testing_support::allreduce_of;
using testing_support::finish;
using testing_support::Job;
using testing_support::kSecondNs;

constexpr int kRanks = 7;

void narrow(RuntimeOptions& options) { options.control_fan_out = 2; }

TEST(TreeJob, AllreducesOfAllRanksAndOfASet) {
  Job job(kRanks, narrow);
  std::vector<std::uint32_t> sets(kRanks);
  job.on_every_rank([&](int rank) {
    Runtime& runtime = job[rank];
    for (int cycle = 0; cycle < 5; ++cycle) {
      std::vector<float> data(100, static_cast<float>(rank + 1));
      finish(runtime, runtime.submit(allreduce_of("a", data)));
      EXPECT_EQ(data, std::vector<float>(100, 28.0f));
    }
    const Ticket added = runtime.add_process_set({2, 3, 6});
    ASSERT_TRUE(runtime.wait(added, Deadline::after(10 * kSecondNs)));
    const auto set = static_cast<std::uint32_t>(runtime.operation(added)->number);
    runtime.release(added);
    if (rank != 2 && rank != 3 && rank != 6) return;
    std::vector<float> data(3, static_cast<float>(rank));
    Submission submission = allreduce_of("s", data);
    submission.request.process_set = set;
    finish(runtime, runtime.submit(std::move(submission)));
    EXPECT_EQ(data, std::vector<float>(3, 11.0f));
  });
}

TEST(TreeJob, RanksJoinAndTheOthersGoOn) {
  Job job(kRanks, narrow);
  job.on_every_rank([&](int rank) {
    Runtime& runtime = job[rank];
    for (int cycle = 0; cycle < rank; ++cycle) {
      std::vector<float> data(10, 1.0f);
      finish(runtime, runtime.submit(allreduce_of("a", data)));
      EXPECT_EQ(data, std::vector<float>(10, static_cast<float>(kRanks - 1 - cycle)));
    }
    finish(runtime, runtime.join("join.noname"));
  });
}

TEST(TreeJob, ARankInTheMiddleThatGoesFirstWaitsForThoseBelow) {
  Job job(kRanks, narrow);
  job.on_every_rank([&](int rank) {
    if (rank == 1) return job[1].shutdown(10 * kSecondNs);
    std::vector<float> data(10, 1.0f);
    const Ticket ticket = job[rank].submit(allreduce_of("a", data));
    EXPECT_THROW((void)job[rank].wait(ticket, Deadline::after(10 * kSecondNs)), ShutDown);
    job[rank].release(ticket);
    job[rank].shutdown(10 * kSecondNs);
  });
}

TEST(TreeJob, WhoeverWaitsLearnsWhichRanksHaveNotCome) {
  Job job(kRanks, narrow);
  constexpr std::array kFirst{0, 3, 6};  // rank 0, one below it, one below a rank in the middle
  std::barrier asked(kRanks);
  job.on_every_rank([&](int rank) {
    Runtime& runtime = job[rank];
    std::vector<float> data(3, 1.0f);
    Ticket ticket = 0;
    if (std::find(kFirst.begin(), kFirst.end(), rank) != kFirst.end()) {
      ticket = runtime.submit(allreduce_of("a", data));
      std::vector<int> missing;  // more at first, until all three have reported it
      const Deadline deadline = Deadline::after(10 * kSecondNs);
      while (missing != std::vector{1, 2, 4, 5} && !deadline.expired()) missing = runtime.awaited(ticket, deadline);
      EXPECT_EQ(missing, (std::vector{1, 2, 4, 5})) << rank;
    }
    asked.arrive_and_wait();
    if (ticket == 0) ticket = runtime.submit(allreduce_of("a", data));
    EXPECT_TRUE(runtime.wait(ticket, Deadline::after(10 * kSecondNs)));
    EXPECT_TRUE(runtime.awaited(ticket, Deadline::after(10 * kSecondNs)).empty()) << "it is done";
    runtime.release(ticket);
    EXPECT_EQ(data, std::vector<float>(3, 7.0f));
  });
}

TEST(TreeJob, ATensorThatOutlivesItsTimeoutEndsTheJobOnAllRanks) {
  Job job(kRanks, narrow);
  job.on_every_rank([&](int rank) {
    std::vector<float> data(3, 1.0f);
    Submission submission = allreduce_of(rank == 6 ? "other" : "a", data);
    submission.request.timeout_ns = rank == 6 ? 0 : kSecondNs / 5;
    const Ticket ticket = job[rank].submit(std::move(submission));
    try {
      (void)job[rank].wait(ticket, Deadline::after(10 * kSecondNs));
      ADD_FAILURE() << "rank " << rank << " did not learn of it";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("6 on host localhost, longer than its timeout"), std::string::npos)
          << error.what();
    }
    job[rank].release(ticket);
  });
}

}  // namespace
}  // namespace ringtune
