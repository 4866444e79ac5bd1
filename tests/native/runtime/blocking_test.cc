// Callers that wait for what they submit: nobody else is woken for it, and nothing is left undone.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "runtime/job.h"

namespace ringtune {
namespace {

using testing_support::allreduce_of;
using testing_support::finish;
using testing_support::Job;
using testing_support::kSecondNs;
using testing_support::submission_of;

/// From begin to end, whatever leaves it.
class Blocking {
 public:
  explicit Blocking(Runtime& runtime) : runtime_(runtime) { Runtime::begin_blocking(); }
  ~Blocking() { runtime_.end_blocking(); }
  Blocking(const Blocking&) = delete;
  Blocking& operator=(const Blocking&) = delete;

 private:
  Runtime& runtime_;
};

class BlockingAtSize : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, BlockingAtSize, testing::Values(1, 2, 3));

TEST_P(BlockingAtSize, WhatIsWaitedForIsDone) {
  Job job(GetParam());
  job.on_every_rank([&](int rank) {
    for (int round = 0; round < 100; ++round) {
      std::vector<std::int32_t> data(5, rank + round);
      const Blocking blocking(job[rank]);
      finish(job[rank], job[rank].submit(allreduce_of("x", data)));
      const int expected = job.size() * round + job.size() * (job.size() - 1) / 2;
      ASSERT_EQ(data, std::vector<std::int32_t>(5, expected)) << round;
    }
  });
}

TEST_P(BlockingAtSize, WhatIsNotWaitedForGoesOnInTheBackgroundAfterTheEnd) {
  Job job(GetParam());
  job.on_every_rank([&](int rank) {
    for (int round = 0; round < 20; ++round) {
      std::vector<std::int32_t> data(5, rank);
      Ticket ticket = 0;
      {
        const Blocking outer(job[rank]);
        const Blocking inner(job[rank]);
        ticket = job[rank].submit(allreduce_of("x", data));
      }
      // poll() does not drive: only the cycle threads can end it.
      const Deadline deadline = Deadline::after(20 * kSecondNs);
      while (!job[rank].poll(ticket) && !deadline.expired()) std::this_thread::yield();
      ASSERT_TRUE(job[rank].poll(ticket));
      finish(job[rank], ticket);
      ASSERT_EQ(data, std::vector<std::int32_t>(5, job.size() * (job.size() - 1) / 2));
    }
  });
}

/// Lets a cycle thread that is still busy with the last operation fall asleep.
void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(5)); }

// Nothing runs what has been submitted before the caller drives, but where something else has woken the cycle thread:
// that may happen, not each time.
TEST(Blocking, NobodyElseIsWoken) {
  Job job(1);
  int left_alone = 0;
  for (int round = 0; round < 20; ++round) {
    pause();
    std::vector<std::int32_t> data(5, 1);
    const Blocking blocking(job[0]);
    const Ticket ticket = job[0].submit(allreduce_of("x", data));
    if (!job[0].attend(ticket, Deadline::after(20'000'000))) ++left_alone;
    finish(job[0], ticket);
  }
  EXPECT_GT(left_alone, 0);
}

TEST(Blocking, AnInnerEndLeavesTheOuterOne) {
  Job job(1);
  int left_alone = 0;
  for (int round = 0; round < 20; ++round) {
    pause();
    std::vector<std::int32_t> data(5, 1);
    const Blocking outer(job[0]);
    const Ticket ticket = job[0].submit(allreduce_of("x", data));
    {
      const Blocking inner(job[0]);
    }
    if (!job[0].attend(ticket, Deadline::after(20'000'000))) ++left_alone;
    finish(job[0], ticket);
  }
  EXPECT_GT(left_alone, 0);
}

TEST(Blocking, IsTheThreadsOwn) {
  Job job(1);
  const Blocking blocking(job[0]);
  std::thread([&] {
    std::vector<std::int32_t> data(5, 1);
    const Ticket ticket = job[0].submit(allreduce_of("x", data));
    EXPECT_TRUE(job[0].attend(ticket, Deadline::after(20 * kSecondNs)));
    finish(job[0], ticket);
  }).join();
}

/// Adds a set on all ranks; its number.
std::uint32_t add_set(Runtime& runtime, const std::vector<int>& members) {
  const Ticket ticket = runtime.add_process_set(members);
  EXPECT_TRUE(runtime.wait(ticket, Deadline::after(20 * kSecondNs)));
  const auto number = static_cast<std::uint32_t>(runtime.operation(ticket)->number);
  runtime.release(ticket);
  return number;
}

// Rank 0 decides for all. Its caller, which never stops, runs batches that look at no message, or cycles.
class BusyCoordinator : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Alone, BusyCoordinator, testing::Bool());

TEST_P(BusyCoordinator, AnswersTheOtherRanks) {
  Job job(4);
  std::atomic<bool> served{false};
  job.on_every_rank([&](int rank) {
    Runtime& runtime = job[rank];
    const std::uint32_t busy = add_set(runtime, {0, 1});
    const std::uint32_t other = add_set(runtime, {2, 3});
    if (rank >= 2) {
      for (int round = 0; round < 30; ++round) {  // every one negotiated
        std::vector<std::int32_t> data(3, rank);
        Submission submission = allreduce_of("new" + std::to_string(round), data);
        submission.request.process_set = other;
        finish(runtime, runtime.submit(std::move(submission)));
        EXPECT_EQ(data, std::vector<std::int32_t>(3, 5));
      }
      if (rank == 2) served = true;
      return;
    }
    std::vector<float> data(3);
    const std::array<std::int64_t, 1> shape{3};
    AllreduceCall call;
    call.name = "busy";
    call.shape = shape;
    call.input = call.output = data.data();
    call.process_set = busy;
    const PersistentRequest persistent = runtime.keep(submission_of(call));
    bool go_on = true;
    while (go_on) {
      // The ranks of the set stop in the same round.
      data[0] = rank == 0 && !served ? 1.0f : 0.0f;
      if (GetParam()) {
        ASSERT_EQ(runtime.run_now(persistent, {data.data(), data.data()}, 20 * kSecondNs), 0u);
      } else {
        const Blocking blocking(runtime);
        ASSERT_EQ(runtime.finish(runtime.submit(persistent, data.data(), data.data()), Deadline::after(20 * kSecondNs)),
                  Finish::kDone);
      }
      go_on = data[0] > 0;
    }
    runtime.drop(persistent);
  });
  EXPECT_TRUE(served);
}

}  // namespace
}  // namespace ringtune
