// Collectives other than allreduce that are kept and run again and again on the calling thread.
#include <gtest/gtest.h>

#include <numeric>

#include "runtime/job.h"

namespace ringtune {
namespace {

using testing_support::barrier_of;
using testing_support::Job;
using testing_support::kSecondNs;
using testing_support::numbers_in;
using testing_support::submission_of;

using Numbers = std::vector<std::int32_t>;

std::size_t bytes_of(const Numbers& numbers) { return numbers.size() * sizeof(std::int32_t); }

class PersistentKinds : public testing::TestWithParam<int> {
 protected:
  /// Keeps a submission on every rank and runs it 40 times: `prepare(rank, round)` before, `check(rank, round)` after.
  struct Rank {
    Numbers input;
    Numbers output;
  };
  void run(const std::function<Submission(Rank&)>& describe, bool gathers,
           const std::function<void(Rank&, int rank, int round)>& prepare,
           const std::function<Numbers(int rank, int round)>& expected) {
    Job job(GetParam());
    job.on_every_rank([&](int rank) {
      Rank own;
      prepare(own, rank, 0);
      own.output = expected(rank, 0);
      const PersistentRequest persistent = job[rank].keep(describe(own));
      for (int round = 0; round < 40; ++round) {
        prepare(own, rank, round);
        std::fill(own.output.begin(), own.output.end(), -1);
        const Memory memory{own.input.data(), own.output.data(), {}, nullptr, gathers ? bytes_of(own.output) : 0};
        ASSERT_EQ(job[rank].run_now(persistent, memory, 10 * kSecondNs), 0u) << round;
        ASSERT_EQ(own.output, expected(rank, round)) << round;
      }
      EXPECT_EQ(job[rank].open_operations(), 0u);
      job[rank].drop(persistent);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, PersistentKinds, testing::Values(1, 2, 3));

TEST_P(PersistentKinds, Broadcast) {
  const auto describe = [&](Rank& own) {
    Submission submission = submission_of(CollectiveKind::kBroadcast, own.input, own.output.data());
    submission.request.root = GetParam() - 1;
    return submission;
  };
  run(
      describe, false, [](Rank& own, int rank, int round) { own.input.assign(9, 100 * round + rank); },
      [](int, int round) { return Numbers(9, 100 * round + GetParam() - 1); });
}

TEST_P(PersistentKinds, AllgatherOfUnequalRows) {
  run([](Rank& own) { return submission_of(CollectiveKind::kAllgather, own.input, nullptr); }, true,
      [](Rank& own, int rank, int round) { own.input.assign(static_cast<std::size_t>(rank + 1), 100 * round + rank); },
      [](int, int round) {
        Numbers all;
        for (int rank = 0; rank < GetParam(); ++rank)
          all.insert(all.end(), static_cast<std::size_t>(rank + 1), 100 * round + rank);
        return all;
      });
}

TEST_P(PersistentKinds, AlltoallOfEqualShares) {
  run([](Rank& own) { return submission_of(CollectiveKind::kAlltoall, own.input, nullptr); }, true,
      [](Rank& own, int rank, int round) {
        own.input.resize(static_cast<std::size_t>(2 * GetParam()));
        std::iota(own.input.begin(), own.input.end(), 1000 * round + 100 * rank);
      },
      [](int rank, int round) {
        Numbers all;
        for (int from = 0; from < GetParam(); ++from) {
          all.push_back(1000 * round + 100 * from + 2 * rank);
          all.push_back(1000 * round + 100 * from + 2 * rank + 1);
        }
        return all;
      });
}

TEST_P(PersistentKinds, ReducescatterOfUnequalRows) {
  const auto describe = [](Rank& own) {
    return submission_of(CollectiveKind::kReducescatter, own.input, own.output.data());
  };
  run(
      describe, false,
      [](Rank& own, int rank, int round) {
        own.input.resize(static_cast<std::size_t>(GetParam() + 1));
        std::iota(own.input.begin(), own.input.end(), 10 * round + rank);
      },
      [](int rank, int round) {
        const int size = GetParam();
        const auto sum = [&](int i) { return size * (10 * round + i) + size * (size - 1) / 2; };
        return rank == 0 ? Numbers{sum(0), sum(1)} : Numbers{sum(rank + 1)};
      });
}

TEST_P(PersistentKinds, Barrier) {
  Job job(GetParam());
  std::atomic<int> come{0};
  job.on_every_rank([&](int rank) {
    const PersistentRequest persistent = job[rank].keep(barrier_of("barrier"));
    for (int round = 0; round < 40; ++round) {
      ++come;
      ASSERT_EQ(job[rank].run_now(persistent, {}, 10 * kSecondNs), 0u);
      EXPECT_GE(come.load(), (round + 1) * job.size());
    }
    job[rank].drop(persistent);
  });
}

TEST(PersistentKind, AResultOfAnotherSizeStaysWithItsOperation) {
  Job job(2);
  job.on_every_rank([&](int rank) {
    Numbers input(3, rank);
    Numbers output(7, -1);  // 6 come
    const PersistentRequest persistent = job[rank].keep(submission_of(CollectiveKind::kAllgather, input, nullptr));
    for (int round = 0; round < 20; ++round) {  // negotiated, then in a schedule
      const Memory memory{input.data(), output.data(), {}, nullptr, bytes_of(output)};
      const Ticket ticket = job[rank].run_now(persistent, memory, 10 * kSecondNs);
      ASSERT_NE(ticket, 0u) << round;
      EXPECT_EQ(job[rank].finish(ticket, Deadline::never()), Finish::kHeld);
      EXPECT_EQ(numbers_in(job[rank].operation(ticket)->gathered), (Numbers{0, 0, 0, 1, 1, 1}));
      EXPECT_EQ(job[rank].operation(ticket)->gathered_shape, (std::vector<std::int64_t>{6}));
      EXPECT_EQ(output, Numbers(7, -1));
      job[rank].release(ticket);
    }
    job[rank].drop(persistent);
  });
}

// Rows of one rank change: to the other one its own call is the same, and only sometimes the result fits.
TEST(PersistentKind, OnlyAResultThatFitsIsWritten) {
  Job job(2);
  job.on_every_rank([&](int rank) {
    for (int round = 0; round < 60; ++round) {
      const bool fits = round % 20 < 17;
      const Numbers input(rank == 0 || fits ? 2 : 3, 10 * round + rank);
      Numbers output(4, -1);
      const PersistentRequest persistent = job[rank].keep(submission_of(CollectiveKind::kAllgather, input, nullptr));
      const Memory memory{input.data(), output.data(), {}, nullptr, bytes_of(output)};
      const Ticket ticket = job[rank].run_now(persistent, memory, 10 * kSecondNs);
      Numbers expected(2, 10 * round);
      expected.insert(expected.end(), fits ? 2 : 3, 10 * round + 1);
      ASSERT_EQ(ticket == 0, fits) << round;
      ASSERT_EQ(fits ? output : numbers_in(job[rank].operation(ticket)->gathered), expected) << round;
      if (!fits) job[rank].release(ticket);
      job[rank].drop(persistent);
    }
  });
}

}  // namespace
}  // namespace ringtune
