// Schedules over links through whole runtimes: a wish for an algorithm takes the batches there.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/error.h"
#include "runtime/job.h"

namespace ringtune {
namespace {

using testing_support::allreduce_of;
using testing_support::barrier_of;
using testing_support::finish;
using testing_support::Job;

class LinkPlan : public testing::TestWithParam<std::tuple<Algorithm, int>> {
 protected:
  Job make_job(std::uint64_t fusion_bytes = Knobs{}.fusion_bytes) {
    return Job(std::get<1>(GetParam()), [&](RuntimeOptions& options) {
      options.knobs.algorithm = static_cast<std::uint32_t>(std::get<0>(GetParam()));
      options.knobs.fusion_bytes = fusion_bytes;
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Algorithms, LinkPlan,
                         testing::Combine(testing::Values(Algorithm::kRing, Algorithm::kFlat,
                                                          Algorithm::kRecursiveDoubling, Algorithm::kTree),
                                          testing::Values(2, 3, 5)));

/// One step: some tensors of this size, in this order; every element is checked.
void step(Job& job, int rank, std::int32_t number, const std::vector<std::size_t>& order, std::size_t count = 100) {
  std::vector<std::vector<std::int32_t>> tensors(order.size());
  std::vector<Ticket> tickets;
  for (const std::size_t i : order) {
    if (tensors.size() <= i) tensors.resize(i + 1);
    tensors[i].assign(count + i, number + rank + static_cast<std::int32_t>(i));
    tickets.push_back(job[rank].submit(allreduce_of("t" + std::to_string(i), tensors[i])));
  }
  for (const Ticket ticket : tickets) finish(job[rank], ticket);
  const int size = job.size();
  for (const std::size_t i : order) {
    const std::int32_t expected = size * (number + static_cast<std::int32_t>(i)) + size * (size - 1) / 2;
    ASSERT_TRUE(std::all_of(tensors[i].begin(), tensors[i].end(), [&](std::int32_t v) { return v == expected; }))
        << "step " << number << ", tensor " << i << ", rank " << rank;
  }
}

std::int64_t control_messages(Job& job, int rank) { return job[rank].counters().control_messages; }

/// Steps until ten of them needed no message here; a busy machine may end a schedule now and then.
void expect_steady(Job& job, int rank, const std::vector<std::size_t>& order, std::size_t count) {
  std::int32_t number = 0;
  for (int window = 0; window < 40; ++window) {
    const std::int64_t before = control_messages(job, rank);
    const std::int64_t before_bytes = job[rank].counters().control_bytes;
    for (int i = 0; i < 10; ++i) step(job, rank, number++, order, count);
    if (control_messages(job, rank) != before) continue;
    EXPECT_EQ(job[rank].counters().control_bytes, before_bytes);
    // The others may need another window: they get these steps.
    for (; number < 400; ++number) step(job, rank, number, order, count);
    return;
  }
  FAIL() << "rank " << rank << " negotiates for ever";
}

TEST_P(LinkPlan, RepeatedStepsNeedNoMessages) {
  Job job = make_job();
  job.on_every_rank([&](int rank) { expect_steady(job, rank, {0, 1, 2}, 100); });
}

/// One step of the lower ranks, of the upper ones and of all; rank 1 is in each.
void step_of_sets(Job& job, int rank, std::int32_t number, bool surprise) {
  const int size = job.size();
  struct Members {
    std::uint32_t set;
    int first;
    int end;
  };
  for (const std::vector<Members>& parts : {std::vector<Members>{{1, 0, 2}, {2, 1, size}, {0, 0, size}},
                                            std::vector<Members>{{surprise ? 1u : 0u, 0, surprise ? 2 : 0}}}) {
    std::vector<std::vector<std::int32_t>> tensors(parts.size(), std::vector<std::int32_t>(50, number + rank));
    std::vector<Ticket> tickets;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (rank < parts[i].first || rank >= parts[i].end) continue;
      Submission submission = allreduce_of(surprise && parts.size() == 1 ? "extra" : "t", tensors[i]);
      submission.request.process_set = parts[i].set;
      tickets.push_back(job[rank].submit(submission));
    }
    for (const Ticket ticket : tickets) finish(job[rank], ticket);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto [set, first, end] = parts[i];
      const std::int32_t members = end - first;
      const bool member = rank >= first && rank < end;
      const std::int32_t expected = member ? members * number + (first + end - 1) * members / 2 : number + rank;
      ASSERT_EQ(tensors[i], std::vector<std::int32_t>(50, expected)) << "set " << set << ", rank " << rank;
    }
  }
}

TEST_P(LinkPlan, StepsOfProcessSetsNeedNoMessagesAndSurprisesChangeNoResult) {
  Job job = make_job();
  if (job.size() == 2) return;
  std::vector<int> upper;
  for (int rank = 1; rank < job.size(); ++rank) upper.push_back(rank);
  std::vector<std::int64_t> fewest(static_cast<std::size_t>(job.size()), 1);
  job.on_every_rank([&](int rank) {
    for (const std::vector<int>& members : {std::vector<int>{0, 1}, upper}) {
      const Ticket ticket = job[rank].add_process_set(members);
      finish(job[rank], ticket);
    }
    for (std::int32_t window = 0; window < 20; ++window) {
      const std::int64_t before = control_messages(job, rank);
      for (std::int32_t i = 0; i < 10; ++i) step_of_sets(job, rank, i, false);
      std::int64_t& least = fewest[static_cast<std::size_t>(rank)];
      least = std::min(least, control_messages(job, rank) - before);
    }
    for (std::int32_t i = 0; i < 60; ++i) step_of_sets(job, rank, i, i % 8 == 0);
  });
  EXPECT_EQ(fewest, std::vector<std::int64_t>(fewest.size(), 0)) << "negotiated for ever";
}

TEST_P(LinkPlan, ALargeTensorAloneNeedsNoneEither) {
  if (std::get<1>(GetParam()) > 2) return;
  Job job = make_job();
  job.on_every_rank([&](int rank) { expect_steady(job, rank, {0}, 300'000); });
}

/// Batches that are copied while they travel: of several tensors, of one in place and of one that leaves its input
/// alone.
void large_step(Job& job, int rank, std::int32_t number) {
  const auto value = [](std::size_t i, int of) { return static_cast<float>((i % 61) + static_cast<std::size_t>(of)); };
  const std::vector<std::size_t> counts{70'001, 3, 90'000, 1, 130'003, 400'000, 262'144, 300'001};
  std::vector<std::vector<float>> inputs;
  std::vector<std::vector<float>> outputs;
  std::vector<Ticket> tickets;
  for (std::size_t t = 0; t < counts.size(); ++t) {
    inputs.emplace_back(counts[t]);
    for (std::size_t i = 0; i < counts[t]; ++i) inputs[t][i] = value(i + t + static_cast<std::size_t>(number), rank);
    outputs.emplace_back(counts[t], -1.0F);
  }
  for (std::size_t t = 0; t < counts.size(); ++t) {
    Submission submission = allreduce_of("l" + std::to_string(t), inputs[t], ReduceOp::kAverage);
    submission.request.prescale = t == 7 ? 1.0 : 2.0;
    const float factor = t < 5 ? 1.0F : 2.0F;  // beside Average's
    submission.request.postscale = factor * static_cast<float>(job.size());
    if (t < 5) submission.request.wire = DType::kFloat16;  // sums of integers up to 2,048 are exact
    if (t < 6) submission.output = outputs[t].data();
    tickets.push_back(job[rank].submit(submission));
  }
  for (const Ticket ticket : tickets) finish(job[rank], ticket);
  for (std::size_t t = 0; t < counts.size(); ++t) {
    const std::vector<float>& result = t < 6 ? outputs[t] : inputs[t];
    for (std::size_t i = 0; i < counts[t]; ++i) {
      const float factor = t < 5 || t == 7 ? 1.0F : 2.0F;  // and 2, or not, before
      float expected = 0;
      for (int of = 0; of < job.size(); ++of) expected += 2 * value(i + t + static_cast<std::size_t>(number), of);
      ASSERT_EQ(result[i], factor * expected)
          << "step " << number << ", tensor " << t << ", element " << i << ", rank " << rank;
    }
  }
}

TEST_P(LinkPlan, LargeBatchesAreExact) {
  Job job = make_job(1 << 20);  // the last three stay alone
  job.on_every_rank([&](int rank) {
    for (std::int32_t number = 0; number < 8; ++number) {
      large_step(job, rank, number);
      if (testing::Test::HasFatalFailure()) return;
    }
  });
}

TEST_P(LinkPlan, SurprisesChangeNoResult) {
  for (std::uint32_t seed = 0; seed < 6; ++seed) {
    Job job = make_job();
    job.on_every_rank([&](int rank) {
      std::mt19937 shared(seed);  // the same surprises everywhere
      std::mt19937 own(seed * 100 + static_cast<std::uint32_t>(rank));
      for (std::int32_t number = 0; number < 60; ++number) {
        std::vector<std::size_t> order{0, 1, 2, 3};
        const auto surprise = shared() % 12;
        if (surprise == 0) order.push_back(4);
        if (surprise == 1) order.erase(order.begin() + 1);
        if (surprise == 2) finish(job[rank], job[rank].submit(barrier_of("b")));
        if (surprise == 3 && rank == 0) {
          Knobs knobs = job[0].knobs();
          knobs.fusion_bytes = 512 + 512 * (shared() % 5);
          (void)job[0].propose_knobs(knobs);
        }
        if (surprise == 3 && rank != 0) (void)shared();
        std::shuffle(order.begin(), order.end(), own);
        step(job, rank, number, order, surprise == 4 ? 50 : 100);
        if (testing::Test::HasFatalFailure()) return;
      }
    });
  }
}

TEST_P(LinkPlan, ARankThatLeavesInAScheduleFailsTheOthersOperations) {
  Job job = make_job();
  const int last = job.size() - 1;
  job.on_every_rank([&](int rank) {
    for (std::int32_t number = 0; number < 30; ++number) step(job, rank, number, {0, 1});
    if (rank == last) return job[rank].shutdown(5'000'000'000);
    std::vector<float> data(4, 1.0f);
    const Ticket ticket = job[rank].submit(allreduce_of("t0", data));
    EXPECT_THROW((void)job[rank].wait(ticket, Deadline::after(10'000'000'000)), ShutDown);
  });
}

TEST_P(LinkPlan, AWaitGivesUpAtItsDeadlineAndTheRoundGoesOn) {
  Job job = make_job();
  std::vector<std::vector<float>> data(static_cast<std::size_t>(job.size()), std::vector<float>(1000, 1.0f));
  std::vector<Ticket> tickets(data.size());
  job.on_every_rank([&](int rank) {
    const auto own = static_cast<std::size_t>(rank);
    for (int number = 0; number < 30; ++number) finish(job[rank], job[rank].submit(allreduce_of("x", data[own])));
    std::fill(data[own].begin(), data[own].end(), 1.0f);
  });
  tickets[0] = job[0].submit(allreduce_of("x", data[0]));
  EXPECT_FALSE(job[0].wait(tickets[0], Deadline::after(20'000'000)));
  job.on_every_rank([&](int rank) {
    const auto own = static_cast<std::size_t>(rank);
    if (rank > 0) tickets[own] = job[rank].submit(allreduce_of("x", data[own]));
    finish(job[rank], tickets[own]);
    EXPECT_EQ(data[own], std::vector<float>(1000, static_cast<float>(job.size())));
  });
}

}  // namespace
}  // namespace ringtune
