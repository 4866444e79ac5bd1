// What every data path keeps to, in host memory and on GPUs, through whole runtimes on the fake driver and the fake
// NCCL: results, order, schedules and rounds that a rank declines, process sets, ends of jobs. A new path joins with
// one line (path_job.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "gpu/device_part.h"
#include "path_job.h"

namespace ringtune {
namespace {

using testing_support::Adjust;
using testing_support::allgather_of;
using testing_support::allreduce_of;
using testing_support::FakeNccl;
using testing_support::kLinkPath;
using testing_support::kNcclPath;
using testing_support::kNcclWithinHostsPath;
using testing_support::kPackedNcclPath;
using testing_support::kRingBetweenGpusPath;
using testing_support::kRingOnOneGpuPath;
using testing_support::kSharedMemoryPath;
using testing_support::kStagedOverLinksPath;
using testing_support::kStagedPath;
using testing_support::name_of_path;
using testing_support::Part;
using testing_support::Path;
using testing_support::PathJob;
using testing_support::PathTensor;
using testing_support::patient;
using testing_support::RingJob;
using testing_support::Seen;
using testing_support::TemporaryFile;

using Ints = std::vector<std::int32_t>;
using Rows = std::vector<std::int64_t>;

constexpr std::size_t kMoreThanABuffer = RingJob::kBufferBytes * 2 + 13;

/// 1 + 2 + ... for each rank.
std::int32_t sum_of_ranks(const PathJob& job) { return job.size() * (job.size() + 1) / 2; }

class EveryPath : public testing::TestWithParam<Path> {
 protected:
  std::unique_ptr<PathJob> job_of(int size, const Adjust& adjust = {}) const { return GetParam().job(size, adjust); }
  /// The tensors have taken this path and no other.
  void expect_taken(const PathJob& job) const {
    if (job.gpus() == nullptr) return;
    EXPECT_EQ(RingJob::staged() > 0, GetParam().staged);
    EXPECT_EQ(FakeNccl::calls("ncclGroupStart") > 0, GetParam().nccl);
  }
};
INSTANTIATE_TEST_SUITE_P(Paths, EveryPath,
                         testing::Values(kSharedMemoryPath, kLinkPath, kNcclPath, kPackedNcclPath, kNcclWithinHostsPath,
                                         kRingOnOneGpuPath, kRingBetweenGpusPath, kStagedPath, kStagedOverLinksPath),
                         name_of_path);

/// Paths of all kinds of collectives.
class EveryKindPath : public EveryPath {};
INSTANTIATE_TEST_SUITE_P(Paths, EveryKindPath,
                         testing::Values(kSharedMemoryPath, kLinkPath, kNcclPath, kRingOnOneGpuPath,
                                         kRingBetweenGpusPath, kStagedPath, kStagedOverLinksPath),
                         name_of_path);

TEST_P(EveryPath, WaitsForWhatMakesTheInputAndLeavesItAsItIs) {
  const auto job = job_of(3);
  job->on_every_rank([&](int rank) {
    for (const std::size_t count : {std::size_t{1000}, kMoreThanABuffer}) {
      PathTensor tensor(*job, rank, Ints(count, -1));
      PathTensor sum(*job, rank, Ints(count, -1));
      for (int round = 1; round <= 4; ++round) {
        tensor.fill(round * (rank + 1));
        job->run(rank, allreduce_of(*job, rank, "t" + std::to_string(count), tensor, sum));
        EXPECT_EQ(sum.values(), Ints(count, sum_of_ranks(*job) * round)) << "rank " << rank;
      }
      EXPECT_EQ(tensor.values(), Ints(count, 4 * (rank + 1))) << "the input stays";
    }
  });
  expect_taken(*job);
}

TEST_P(EveryPath, AnEmptyTensorIsAgreedOnLikeAnyOther) {
  const auto job = job_of(2);
  job->on_every_rank([&](int rank) {
    PathTensor tensor(*job, rank, {});
    job->run(rank, allreduce_of(*job, rank, "t", tensor, tensor));
  });
}

/// Steps of some gradients in place, with other values each time.
class Training {
 public:
  Training(PathJob& job, int rank) : job_(job), rank_(rank) {
    for (const std::size_t count : {5, 900, 1, 4000}) {
      tensors_.push_back(std::make_unique<PathTensor>(job, rank, Ints(count, 0)));
    }
  }
  void submit(std::int32_t step) {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      tensors_[i]->fill((step + static_cast<std::int32_t>(i)) * (rank_ + 1));
      tickets_.push_back(
          job_[rank_].submit(allreduce_of(job_, rank_, "grad" + std::to_string(i), *tensors_[i], *tensors_[i])));
    }
  }
  void finish(std::int32_t step) {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      job_.finish(rank_, tickets_[i]);
      const std::int32_t sum = sum_of_ranks(job_) * (step + static_cast<std::int32_t>(i));
      ASSERT_EQ(tensors_[i]->values(), Ints(tensors_[i]->size(), sum)) << "step " << step << ", tensor " << i;
    }
    tickets_.clear();
  }

 private:
  PathJob& job_;
  int rank_;
  std::vector<std::unique_ptr<PathTensor>> tensors_;
  std::vector<Ticket> tickets_;
};

TEST_P(EveryPath, StepsThatRepeatThemselvesFollowAScheduleWithoutAControlMessage) {
  const auto job = job_of(2, patient);
  std::vector<std::int64_t> fewest(static_cast<std::size_t>(job->size()), 1);
  job->on_every_rank([&](int rank) {
    Training training(*job, rank);
    std::int32_t step = 0;
    for (int window = 0; window < 6; ++window) {
      const std::int64_t before = (*job)[rank].counters().control_messages;
      for (int i = 0; i < 10; ++i, ++step) {
        training.submit(step);
        training.finish(step);
      }
      std::int64_t& least = fewest[static_cast<std::size_t>(rank)];
      least = std::min(least, (*job)[rank].counters().control_messages - before);
    }
  });
  EXPECT_EQ(fewest, std::vector<std::int64_t>(fewest.size(), 0)) << "negotiated for ever";
  expect_taken(*job);
}

TEST_P(EveryPath, ARoundThatARankDeclinesRunsAfterwardsOnAllOfThem) {
  const auto job = job_of(2);
  job->on_every_rank([&](int rank) {
    Training training(*job, rank);
    PathTensor extra(*job, rank, Ints(3, 0));
    const auto begin_extra = [&](std::int32_t step) {
      extra.fill(step);
      return (*job)[rank].submit(allreduce_of(*job, rank, "extra" + std::to_string(step), extra, extra));
    };
    for (std::int32_t step = 0; step < 60; ++step) {
      // Every tenth step one rank has something else to do before the others, who wait in the schedule's round by then.
      const bool surprises = step % 10 == 9;
      const bool first = surprises && (step / 10) % job->size() == rank;
      Ticket ticket = first ? begin_extra(step) : 0;
      training.submit(step);
      training.finish(step);
      if (surprises && !first) ticket = begin_extra(step);
      if (!surprises) continue;
      job->finish(rank, ticket);
      ASSERT_EQ(extra.values(), Ints(3, job->size() * step));
    }
  });
  expect_taken(*job);
}

TEST_P(EveryPath, AllreducesGoOnWhenARankHasJoinedAndOnTheSamePathAgainAfterwards) {
  const auto job = job_of(2);
  job->on_every_rank([&](int rank) {
    PathTensor tensor(*job, rank, Ints(10, rank + 1));
    const auto sum = [&] { job->run(rank, allreduce_of(*job, rank, "t", tensor, tensor)); };
    sum();
    const std::int32_t all = sum_of_ranks(*job);
    if (rank == 0) {
      sum();
      EXPECT_EQ(tensor.values(), Ints(10, all)) << "the others contribute zeros";
    }
    testing_support::finish((*job)[rank], (*job)[rank].join("join"));
    const bool on_gpus = job->gpus() != nullptr;
    const int before = on_gpus ? RingJob::staged() : 0;
    tensor.fill(all);
    sum();
    EXPECT_EQ(tensor.values(), Ints(10, job->size() * all));
    if (on_gpus && !GetParam().staged) {
      EXPECT_EQ(RingJob::staged(), before);
    }
  });
}

TEST_P(EveryPath, APeerThatLeavesFailsWhatWaitsForIt) {
  const auto job = job_of(2);
  std::vector<std::unique_ptr<PathTensor>> tensors;
  for (int rank = 0; rank < job->size(); ++rank)
    tensors.push_back(std::make_unique<PathTensor>(*job, rank, Ints(4, 1)));
  const auto sum = [&](int rank, const std::string& name) {
    PathTensor& tensor = *tensors[static_cast<std::size_t>(rank)];
    return (*job)[rank].submit(allreduce_of(*job, rank, name, tensor, tensor));
  };
  job->on_every_rank([&](int rank) {
    job->finish(rank, sum(rank, "first"));
    (void)tensors[static_cast<std::size_t>(rank)]->values();  // nothing of it is left in streams
  });
  const Ticket ticket = sum(0, "t");
  (*job)[job->size() - 1].shutdown(0);
  EXPECT_THROW(job->finish(0, ticket), ShutDown);
  (*job)[0].release(ticket);
}

TEST_P(EveryPath, TheTimelineTellsWhichPathABatchHasTaken) {
  const TemporaryFile file;
  const auto job = job_of(2);
  const auto sum = [&](int rank, const std::string& name) {
    PathTensor tensor(*job, rank, Ints(100, rank + 1));
    job->run(rank, allreduce_of(*job, rank, name, tensor, tensor));
    EXPECT_EQ(tensor.values(), Ints(100, sum_of_ranks(*job)));
  };
  job->on_every_rank([&](int rank) { sum(rank, "first"); });  // all is connected
  (*job)[0].start_timeline({.path = file.path()});
  job->on_every_rank([&](int rank) { sum(rank, "grad"); });
  (*job)[0].stop_timeline();
  Part part(file.path());
  const std::vector<Seen>& spans = part.spans["RING_ALLREDUCE"];
  EXPECT_TRUE(
      std::any_of(spans.begin(), spans.end(),
                  [](const Seen& span) { return span.tensor == "grad" && span.algorithm == GetParam().algorithm; }))
      << spans.size() << " spans, the first by " << (spans.empty() ? "nothing" : spans.front().algorithm);
}

TEST_P(EveryKindPath, BroadcastGoesFromAnyRoot) {
  const auto job = job_of(3);
  job->on_every_rank([&](int rank) {
    for (int root = 0; root < 3; ++root) {
      PathTensor input(*job, rank, Ints(kMoreThanABuffer, rank + 1));
      PathTensor output(*job, rank, Ints(kMoreThanABuffer, -1));
      Submission submission = allreduce_of(*job, rank, "b" + std::to_string(root), input, output);
      submission.request.kind = CollectiveKind::kBroadcast;
      submission.request.root = root;
      job->run(rank, submission);
      EXPECT_EQ(output.values(), Ints(kMoreThanABuffer, root + 1));
      EXPECT_EQ(input.values(), Ints(kMoreThanABuffer, rank + 1));
    }
  });
  expect_taken(*job);
}

TEST_P(EveryKindPath, AllgatherComesBehindWhatMakesItsInput) {
  const auto job = job_of(3);
  job->on_every_rank([&](int rank) {
    PathTensor tensor(*job, rank, Ints(4, -1));
    for (int round = 1; round <= 4; ++round) {
      tensor.fill(10 * round + rank);
      const Ticket ticket = (*job)[rank].submit(allgather_of(*job, rank, "t", tensor, {2, 2}));
      Ints expected;
      for (int one = 0; one < 3; ++one) expected.insert(expected.end(), 4, 10 * round + one);
      EXPECT_EQ(job->gathered(rank, ticket), std::pair(expected, Rows{6, 2}));
    }
  });
  expect_taken(*job);
  if (job->gpus() != nullptr) {
    EXPECT_EQ(FakeNccl::calls("ncclAllGather"), GetParam().nccl ? 3 * 4 : 0) << "equal rows are one call";
  }
}

TEST_P(EveryKindPath, GatheredRowsMayDifferBeNoneAndBeMoreThanABuffer) {
  const auto job = job_of(3);
  job->on_every_rank([&](int rank) {
    // A ring's 16 KiB are for three: rank 0 gives in four rounds, rank 2 in one, rank 1 never.
    const std::size_t rows = rank == 0 ? 2'501 : rank == 1 ? 0 : 7;
    Ints mine(2 * rows);
    for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = static_cast<std::int32_t>(i) + 10'000 * rank;
    PathTensor tensor(*job, rank, mine);
    Ints expected;
    for (int i = 0; i < 2 * 2'501; ++i) expected.push_back(i);
    for (int i = 0; i < 2 * 7; ++i) expected.push_back(i + 20'000);
    for (int round = 0; round < 2; ++round) {
      const Ticket ticket =
          (*job)[rank].submit(allgather_of(*job, rank, "t", tensor, {static_cast<std::int64_t>(rows), 2}));
      EXPECT_EQ(job->gathered(rank, ticket), std::pair(expected, Rows{2'508, 2}));
    }
    EXPECT_EQ(tensor.values(), mine);
    PathTensor empty(*job, rank, {});
    const Ticket ticket = (*job)[rank].submit(allgather_of(*job, rank, "nothing", empty, {0, 2}));
    EXPECT_EQ(job->gathered(rank, ticket).first, Ints());
  });
  expect_taken(*job);
}

TEST_P(EveryKindPath, ProcessSetsCommunicateAmongTheirMembersAlone) {
  const auto job = job_of(3);
  job->on_every_rank([&](int rank) {
    Runtime& runtime = (*job)[rank];
    const Ticket added = runtime.add_process_set({0, 2});
    ASSERT_TRUE(runtime.wait(added, Deadline::after(20'000'000'000)));
    const auto set = static_cast<std::uint32_t>(runtime.operation(added)->number);
    runtime.release(added);
    PathTensor tensor(*job, rank, Ints(5, rank + 1));
    job->run(rank, allreduce_of(*job, rank, "all", tensor, tensor));
    if (rank != 1) {
      Submission submission = allreduce_of(*job, rank, "some", tensor, tensor);
      submission.request.process_set = set;
      job->run(rank, std::move(submission));
      PathTensor rows(*job, rank, Ints(2, rank));
      submission = allgather_of(*job, rank, "rows", rows, {2});
      submission.request.process_set = set;
      EXPECT_EQ(job->gathered(rank, runtime.submit(std::move(submission))).first, (Ints{0, 0, 2, 2}));
    }
    EXPECT_EQ(tensor.values(), Ints(5, rank == 1 ? 6 : 12));
    testing_support::finish(runtime, runtime.remove_process_set(set));
    job->run(rank, allreduce_of(*job, rank, "all again", tensor, tensor));
    EXPECT_EQ(tensor.values(), Ints(5, 30));
  });
  expect_taken(*job);
  if (!GetParam().nccl) return;
  EXPECT_EQ(FakeNccl::calls("ncclCommInitRankConfig"), 5) << "a set has a communicator of its own";
  job->end();
  EXPECT_EQ(FakeNccl::calls("ncclCommDestroy"), 5);
}

}  // namespace
}  // namespace ringtune
