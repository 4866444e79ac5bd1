// Steps of all collectives: they follow a schedule too, in shared memory and over links.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <random>
#include <thread>

#include "collective/algorithm.h"
#include "runtime/job.h"

namespace ringtune {
namespace {

using testing_support::allreduce_of;
using testing_support::barrier_of;
using testing_support::finish;
using testing_support::Job;
using testing_support::numbers_in;
using testing_support::submission_of;

using Numbers = std::vector<std::int32_t>;

/// What is there, of the operation's own memory.
Numbers gathered_by(Runtime& runtime, Ticket ticket) {
  if (!runtime.wait(ticket, Deadline::after(10'000'000'000))) throw Timeout("the test's operation did not end");
  Numbers found = numbers_in(runtime.operation(ticket)->gathered);
  runtime.release(ticket);
  return found;
}

/// What a rank does in a step, all of it different in each.
class Step {
 public:
  Step(Job& job, int rank, std::int32_t number)
      : runtime_(job[rank]), rank_(rank), size_(job.size()), number_(number) {}

  void allreduce(const std::string& name) {
    Numbers data(100, number_ + rank_);
    finish(runtime_, runtime_.submit(allreduce_of(name, data)));
    EXPECT_EQ(data, Numbers(100, size_ * number_ + size_ * (size_ - 1) / 2)) << name;
  }

  /// Rank r gives r rows more than the first.
  void allgather(std::int32_t first = 0) {
    const Numbers input(static_cast<std::size_t>(rank_ + first), number_ + rank_);
    Numbers expected;
    for (int rank = 0; rank < size_; ++rank)
      expected.insert(expected.end(), static_cast<std::size_t>(rank + first), number_ + rank);
    const Ticket ticket = runtime_.submit(submission_of(CollectiveKind::kAllgather, input, nullptr));
    EXPECT_EQ(gathered_by(runtime_, ticket), expected) << "allgather";
  }

  void broadcast(int root) {
    Numbers data(7, number_ + rank_);
    Submission submission = submission_of(CollectiveKind::kBroadcast, data, data.data());
    submission.request.root = root;
    finish(runtime_, runtime_.submit(submission));
    EXPECT_EQ(data, Numbers(7, number_ + root)) << "broadcast";
  }

  /// Splits change with every step: rank r sends (r + k + number) % 3 rows to rank k.
  void alltoall() {
    const auto rows = [&](int from, int to) { return (from + to + number_) % 3; };
    Numbers input(static_cast<std::size_t>(2 * size_), 0);
    std::iota(input.begin(), input.end(), 100 * rank_);
    Submission submission = submission_of(CollectiveKind::kAlltoall, input, nullptr);
    for (int to = 0; to < size_; ++to) submission.splits.push_back(rows(rank_, to));
    Numbers expected;
    for (int from = 0; from < size_; ++from) {
      std::int32_t next = 100 * from;
      for (int to = 0; to < rank_; ++to) next += rows(from, to);
      for (int row = 0; row < rows(from, rank_); ++row) expected.push_back(next++);
    }
    EXPECT_EQ(gathered_by(runtime_, runtime_.submit(submission)), expected) << "alltoall";
  }

  /// Of one row more than there are ranks: the first gets two.
  void reducescatter() {
    Numbers input(static_cast<std::size_t>(size_ + 1));
    std::iota(input.begin(), input.end(), number_ + rank_);
    Numbers output(rank_ == 0 ? 2 : 1, -1);
    finish(runtime_, runtime_.submit(submission_of(CollectiveKind::kReducescatter, input, output.data())));
    const std::int32_t sum = size_ * number_ + size_ * (size_ - 1) / 2;
    const Numbers expected = rank_ == 0 ? Numbers{sum, sum + size_} : Numbers{sum + size_ * (rank_ + 1)};
    EXPECT_EQ(output, expected) << "reducescatter";
  }

  void adasum() {
    if ((size_ & (size_ - 1)) != 0) return;
    std::vector<float> data(5, static_cast<float>(number_));
    finish(runtime_, runtime_.submit(allreduce_of("adasum", data, ReduceOp::kAdasum)));
    EXPECT_EQ(data, std::vector<float>(5, static_cast<float>(number_))) << "Adasum of equal gradients is one of them";
  }

  void barrier() { finish(runtime_, runtime_.submit(barrier_of("barrier"))); }

  void everything() {
    allreduce("first");
    allgather();
    broadcast(size_ - 1);
    alltoall();
    barrier();
    reducescatter();
    adasum();
    allreduce("last");
  }

 private:
  Runtime& runtime_;
  int rank_;
  int size_;
  std::int32_t number_;
};

/// Algorithm::kTable: through shared memory, where there is any.
class ScheduleOfAllKinds : public testing::TestWithParam<std::tuple<Algorithm, int>> {
 protected:
  Job make_job() {
    return Job(std::get<1>(GetParam()), [&](RuntimeOptions& options) {
      options.knobs.algorithm = static_cast<std::uint32_t>(std::get<0>(GetParam()));
    });
  }
};
INSTANTIATE_TEST_SUITE_P(DataPaths, ScheduleOfAllKinds,
                         testing::Combine(testing::Values(Algorithm::kTable, Algorithm::kRing),
                                          testing::Values(2, 3, 4)));

TEST_P(ScheduleOfAllKinds, NeedsNoMessages) {
  Job job = make_job();
  std::vector<std::int64_t> fewest(static_cast<std::size_t>(job.size()), 1);
  job.on_every_rank([&](int rank) {
    std::int32_t number = 0;
    for (int window = 0; window < 20; ++window) {
      const std::int64_t before = job[rank].counters().control_messages;
      for (int i = 0; i < 10; ++i) Step(job, rank, number++).everything();
      std::int64_t& least = fewest[static_cast<std::size_t>(rank)];
      least = std::min(least, job[rank].counters().control_messages - before);
    }
  });
  EXPECT_EQ(fewest, std::vector<std::int64_t>(fewest.size(), 0)) << "negotiated for ever";
}

TEST_P(ScheduleOfAllKinds, SurprisesChangeNoResult) {
  for (std::uint32_t seed = 0; seed < 4; ++seed) {
    Job job = make_job();
    job.on_every_rank([&](int rank) {
      std::mt19937 shared(seed);  // the same surprises everywhere
      for (std::int32_t number = 0; number < 80; ++number) {
        Step step(job, rank, number);
        const auto surprise = shared() % 12;
        if (surprise == 0) step.barrier();
        if (surprise == 1) step.allgather();
        if (surprise == 2) step.allgather(2);  // other rows
        if (surprise == 3) step.broadcast(0);  // another root
        if (surprise == 4) step.allreduce("extra");
        if (surprise == 5) continue;
        step.everything();
      }
    });
  }
}

/// A barrier of a schedule holds everybody back as any other does.
TEST_P(ScheduleOfAllKinds, ABarrierWaitsForAll) {
  Job job = make_job();
  std::atomic<int> arrived{0};
  job.on_every_rank([&](int rank) {
    std::mt19937 own(static_cast<std::uint32_t>(rank));
    for (int number = 1; number <= 200; ++number) {
      if (own() % 20 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 1000));
      arrived.fetch_add(1);
      Step(job, rank, number).barrier();
      EXPECT_GE(arrived.load(), number * job.size());
    }
  });
}

TEST_P(ScheduleOfAllKinds, ARankThatLeavesFailsTheOthersOperations) {
  Job job = make_job();
  const int last = job.size() - 1;
  job.on_every_rank([&](int rank) {
    for (std::int32_t number = 0; number < 30; ++number) Step(job, rank, number).everything();
    if (rank == last) return job[rank].shutdown(5'000'000'000);
    EXPECT_THROW(Step(job, rank, 30).allreduce("first"), ShutDown);
    EXPECT_THROW(Step(job, rank, 30).barrier(), ShutDown);
  });
}

}  // namespace
}  // namespace ringtune
