#include "runtime/overlap_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

#include "base/clock.h"
#include "runtime/job.h"

namespace ringtune {
namespace {

using testing_support::allreduce_of;
using testing_support::finish;
using testing_support::Job;

constexpr std::int64_t kMs = 1'000'000;
constexpr std::int64_t kMargin = OverlapPolicy::kMarginNs;

/// A pass that begins here and whose caller comes so much later.
OverlapPolicy after_a_pass(std::int64_t begin_ns, std::int64_t taken_ns) {
  OverlapPolicy policy;
  policy.in_flight(0, begin_ns);
  policy.asked(begin_ns + taken_ns);
  return policy;
}

TEST(OverlapPolicy, NothingIsHeldBeforeThePaceIsKnown) {
  OverlapPolicy policy;
  EXPECT_EQ(policy.until_ns(), 0);
  policy.in_flight(1, 5);
  EXPECT_EQ(policy.until_ns(), 0);
}

TEST(OverlapPolicy, HoldsTwiceAsLongAsTheCallerTook) {
  OverlapPolicy policy = after_a_pass(100, 30 * kMs);
  policy.in_flight(1, 1'000 * kMs);
  policy.in_flight(1, 1'001 * kMs);  // the same pass
  EXPECT_EQ(policy.until_ns(), 1'060 * kMs + kMargin);
}

TEST(OverlapPolicy, ACallerEndsTheHoldAndIsRemembered) {
  OverlapPolicy policy = after_a_pass(100, 30 * kMs);
  policy.in_flight(1, 1'000 * kMs);
  policy.asked(999 * kMs);  // of the pass before
  EXPECT_NE(policy.until_ns(), 0);
  policy.asked(1'010 * kMs);
  policy.asked(1'020 * kMs);
  EXPECT_EQ(policy.until_ns(), 0);
  policy.in_flight(2, 2'000 * kMs);
  EXPECT_EQ(policy.until_ns(), 2'020 * kMs + kMargin);
}

TEST(OverlapPolicy, AHurryEndsTheHoldOnce) {
  OverlapPolicy policy = after_a_pass(100, 30 * kMs);
  policy.in_flight(1, 1'000 * kMs);
  policy.hurry();
  EXPECT_EQ(policy.until_ns(), 0);
  policy.asked(1'030 * kMs);
  policy.in_flight(2, 2'000 * kMs);
  EXPECT_EQ(policy.until_ns(), 2'060 * kMs + kMargin);
}

TEST(OverlapPolicy, APassThatNobodyAskedForEndsTheHoldOff) {
  OverlapPolicy policy = after_a_pass(100, 30 * kMs);
  policy.in_flight(1, 1'000 * kMs);
  policy.in_flight(2, 2'000 * kMs);
  EXPECT_EQ(policy.until_ns(), 0);
}

TEST(OverlapPolicy, ACallerMayComeWhenItIsOver) {
  OverlapPolicy policy;
  policy.in_flight(1, 100);
  policy.asked(100 + 30 * kMs);
  policy.in_flight(2, 1'000 * kMs);
  EXPECT_EQ(policy.until_ns(), 1'060 * kMs + kMargin);
}

TEST(OverlapPolicy, VeryLongStepsAreNotHeld) {
  OverlapPolicy policy = after_a_pass(100, OverlapPolicy::kLongestNs + 1);
  policy.in_flight(1, 60'000 * kMs);
  EXPECT_EQ(policy.until_ns(), 0);
}

/// Two ranks that repeat one step of two batches.
class HeldBack : public testing::Test {
 protected:
  using Tensors = std::vector<std::vector<float>>;

  explicit HeldBack(Algorithm algorithm = Algorithm::kTable)
      : job_(2, [algorithm](RuntimeOptions& options) {
          options.overlap = Overlap::kNever;
          options.knobs.fusion_bytes = 4096;  // a batch for each tensor
          options.knobs.algorithm = static_cast<std::uint32_t>(algorithm);
        }) {}

  Job job_;

  std::vector<Ticket> submit(int rank, Tensors& tensors) {
    tensors.assign(2, std::vector<float>(4096, static_cast<float>(rank + 1)));
    return {job_[rank].submit(allreduce_of("a", tensors[0])), job_[rank].submit(allreduce_of("b", tensors[1]))};
  }
  void finish_all(int rank, const std::vector<Ticket>& tickets, const Tensors& tensors) {
    for (const Ticket ticket : tickets) finish(job_[rank], ticket);
    for (const auto& tensor : tensors) {
      ASSERT_TRUE(std::all_of(tensor.begin(), tensor.end(), [](float value) { return value == 3.0F; }));
    }
  }
  /// Steps in which the caller comes so long after it has submitted.
  void steps(int rank, int count, std::int64_t pause_ns) {
    for (int i = 0; i < count; ++i) {
      Tensors tensors;
      const std::vector<Ticket> tickets = submit(rank, tensors);
      std::this_thread::sleep_for(std::chrono::nanoseconds(pause_ns));
      finish_all(rank, tickets, tensors);
    }
  }
  /// Into a schedule, with callers who come 300 ms after they have submitted.
  void learn(int rank) {
    steps(rank, 30, 0);
    steps(rank, 2, 300 * kMs);
  }
  [[nodiscard]] bool done(int rank, Ticket ticket) { return job_[rank].operation(ticket)->done(); }
};

// A busy machine may end a schedule now and then, which lets everything go ahead: it is enough to see a hold once.
constexpr int kTries = 10;

TEST_F(HeldBack, WaitsForTheCallerAndThenNoLonger) {
  std::array<bool, 2> held{};
  for (int i = 0; i < kTries && !(held[0] && held[1]); ++i) {
    job_.on_every_rank([&](int rank) {
      learn(rank);
      Tensors tensors;
      const std::vector<Ticket> tickets = submit(rank, tensors);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      if (!done(rank, tickets[0])) held[static_cast<std::size_t>(rank)] = true;
      // Without a caller it goes ahead by itself, in the end.
      const Deadline limit = Deadline::after(10'000 * kMs);
      while (!done(rank, tickets[1]) && !limit.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      ASSERT_TRUE(done(rank, tickets[1]));
      finish_all(rank, tickets, tensors);
    });
  }
  EXPECT_TRUE(held[0] && held[1]);
}

TEST_F(HeldBack, ARankThatWaitsSetsTheOtherGoing) {
  bool early = false;
  for (int i = 0; i < kTries && !early; ++i) {
    job_.on_every_rank([&](int rank) {
      learn(rank);
      Tensors tensors;
      const std::int64_t begin_ns = now_ns();
      const std::vector<Ticket> tickets = submit(rank, tensors);
      // Rank 1 would let go by itself after 620 ms, and its caller does not come before that.
      if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(900));
      finish_all(rank, tickets, tensors);
      if (rank == 0) early = now_ns() - begin_ns < 500 * kMs;
    });
  }
  EXPECT_TRUE(early);
}

TEST_F(HeldBack, AskingSetsItGoingToo) {
  bool early = false;
  for (int i = 0; i < kTries && !early; ++i) {
    job_.on_every_rank([&](int rank) {
      learn(rank);
      Tensors tensors;
      const std::int64_t begin_ns = now_ns();
      const std::vector<Ticket> tickets = submit(rank, tensors);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      while (!job_[rank].poll(tickets[1])) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (rank == 0) early = now_ns() - begin_ns < 500 * kMs;
      finish_all(rank, tickets, tensors);
    });
  }
  EXPECT_TRUE(early);
}

/// The same over links, which a wish for an algorithm takes the batches to.
class NotHeldBack : public HeldBack {
 protected:
  NotHeldBack() : HeldBack(Algorithm::kRing) {}
};

TEST_F(NotHeldBack, WhatGoesOverLinksGoesWhileTheCallerComputes) {
  std::array<bool, 2> early{};
  for (int i = 0; i < kTries && !(early[0] && early[1]); ++i) {
    job_.on_every_rank([&](int rank) {
      learn(rank);
      Tensors tensors;
      const std::int64_t begin_ns = now_ns();
      const std::vector<Ticket> tickets = submit(rank, tensors);
      // Held back it would be for 620 ms, by callers who come after 300 ms.
      const Deadline limit = Deadline::after(10'000 * kMs);
      while (!done(rank, tickets[1]) && !limit.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      if (now_ns() - begin_ns < 300 * kMs) early[static_cast<std::size_t>(rank)] = true;
      finish_all(rank, tickets, tensors);
    });
  }
  EXPECT_TRUE(early[0] && early[1]);
}

TEST_F(HeldBack, LeavingIsNotHeldBack) {
  job_.on_every_rank([&](int rank) {
    learn(rank);
    Tensors tensors;
    const std::vector<Ticket> tickets = submit(rank, tensors);
    job_[rank].shutdown(5'000 * kMs);
    // What all ranks have submitted is done, or has failed: it is not in flight.
    EXPECT_TRUE(done(rank, tickets[0]) && done(rank, tickets[1]));
  });
}

}  // namespace
}  // namespace ringtune
