// What every data path of tensors on GPUs keeps to, through whole runtimes on the fake driver and the fake NCCL:
// results, order, process sets, and ends of jobs. A new path joins with one line.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "gathered.h"
#include "ring_job.h"
#include "warm_up.h"

namespace ringtune {
namespace {

using testing_support::delivered;
using testing_support::DeviceArray;
using testing_support::FakeGpu;
using testing_support::FakeNccl;
using testing_support::gather_of;
using testing_support::NcclJob;
using testing_support::patient;
using testing_support::RankBytes;
using testing_support::RingJob;
using testing_support::run_steps;
using testing_support::sum_while_busy;
using testing_support::warm_up;

using Ints = std::vector<std::int32_t>;
using Rows = std::vector<std::int64_t>;
using Adjust = std::function<void(RuntimeOptions&)>;

constexpr std::size_t kMoreThanABuffer = RingJob::kBufferBytes * 2 + 13;

struct Path {
  const char* name;
  std::unique_ptr<NcclJob> (*job)(int size, const Adjust& adjust);
  bool nccl;    // its batches are calls of NCCL
  bool staged;  // its tensors come to the host
};

constexpr Path kNccl{"Nccl", [](int size, const Adjust& adjust) { return std::make_unique<NcclJob>(size, adjust); },
                     true, false};
constexpr Path kRingOnOneGpu{
    "RingOnOneGpu",
    [](int size, const Adjust& adjust) -> std::unique_ptr<NcclJob> { return std::make_unique<RingJob>(size, adjust); },
    false, false};
constexpr Path kRingBetweenGpus{"RingBetweenGpus",
                                [](int size, const Adjust& adjust) -> std::unique_ptr<NcclJob> {
                                  return std::make_unique<RingJob>(size, size, [&](RuntimeOptions& options) {
                                    options.nccl_libraries.clear();
                                    if (adjust) adjust(options);
                                  });
                                },
                                false, false};
constexpr Path kStaged{"Staged",
                       [](int size, const Adjust& adjust) {
                         return std::make_unique<NcclJob>(size, [&](RuntimeOptions& options) {
                           options.gpu_data_path = GpuDataPath::kStaged;
                           if (adjust) adjust(options);
                         });
                       },
                       false, true};

std::string name_of_path(const testing::TestParamInfo<Path>& info) { return info.param.name; }

class AnyDataPath : public testing::TestWithParam<Path> {
 protected:
  std::unique_ptr<NcclJob> job_of(int size, const Adjust& adjust = {}) const { return GetParam().job(size, adjust); }
  /// The tensors have taken this path and no other.
  void expect_taken() const {
    EXPECT_EQ(RingJob::staged() > 0, GetParam().staged);
    EXPECT_EQ(FakeNccl::calls("ncclGroupStart") > 0, GetParam().nccl);
  }
};
INSTANTIATE_TEST_SUITE_P(Paths, AnyDataPath, testing::Values(kNccl, kRingOnOneGpu, kRingBetweenGpus, kStaged),
                         name_of_path);

/// From GPU to GPU: an operation is done for the host when its work is in a stream.
class DirectDataPath : public AnyDataPath {};
INSTANTIATE_TEST_SUITE_P(Paths, DirectDataPath, testing::Values(kNccl, kRingOnOneGpu, kRingBetweenGpus), name_of_path);

TEST_P(AnyDataPath, AllreduceWaitsForTheKernelsBeforeItAndTheOnesAfterWaitForIt) {
  const auto job = job_of(3);
  job->on_every_rank([&](int rank) {
    for (const std::size_t count : {std::size_t{1000}, kMoreThanABuffer}) {
      DeviceArray<std::int32_t> tensor(job->device(rank), Ints(count, -1));
      DeviceArray<std::int32_t> sum(job->device(rank), Ints(count, -1));
      for (int round = 1; round <= 4; ++round) {
        tensor.fill(job->stream(rank), round * (rank + 1));
        job->run(rank, job->of(rank, "t" + std::to_string(count), tensor, sum));
        EXPECT_EQ(sum.values(job->stream(rank)), Ints(count, 6 * round)) << "rank " << rank;
      }
      EXPECT_EQ(tensor.values(job->stream(rank)), Ints(count, 4 * (rank + 1))) << "the input stays";
    }
  });
  expect_taken();
}

TEST_P(AnyDataPath, AnEmptyTensorIsAgreedOnLikeAnyOther) {
  const auto job = job_of(2);
  job->on_every_rank([&](int rank) {
    DeviceArray<float> tensor(job->device(rank), {});
    job->run(rank, job->of(rank, "t", tensor, tensor));
  });
}

TEST_P(AnyDataPath, BroadcastGoesFromAnyRootInAnyDtype) {
  const auto job = job_of(3);
  job->on_every_rank([&](int rank) {
    for (int root = 0; root < 3; ++root) {
      const std::vector<std::byte> mine(kMoreThanABuffer, std::byte(rank + 1));
      RankBytes input(job->device(rank), mine);
      RankBytes output(job->device(rank), std::vector<std::byte>(kMoreThanABuffer));
      Submission submission = job->of(rank, "b" + std::to_string(root), input.data(), output.data(), DType::kBool,
                                      {static_cast<std::int64_t>(kMoreThanABuffer)});
      submission.request.kind = CollectiveKind::kBroadcast;
      submission.request.root = root;
      job->run(rank, submission);
      EXPECT_EQ(output.values(job->stream(rank)), std::vector<std::byte>(kMoreThanABuffer, std::byte(root + 1)));
      EXPECT_EQ(input.values(job->stream(rank)), mine);
    }
  });
  expect_taken();
}

TEST_P(AnyDataPath, AllgatherComesBehindTheKernelsBeforeIt) {
  const auto job = job_of(3);
  job->on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> tensor(job->device(rank), Ints(4, -1));
    for (int round = 1; round <= 4; ++round) {
      tensor.fill(job->stream(rank), 10 * round + rank);
      const Ticket ticket = (*job)[rank].submit(gather_of(*job, rank, "t", tensor, {2, 2}));
      Ints expected;
      for (int one = 0; one < 3; ++one) expected.insert(expected.end(), 4, 10 * round + one);
      EXPECT_EQ(delivered(*job, rank, ticket), expected);
    }
  });
  expect_taken();
  EXPECT_EQ(FakeNccl::calls("ncclAllGather"), GetParam().nccl ? 3 * 4 : 0) << "equal rows are one call";
}

TEST_P(AnyDataPath, GatheredRowsMayDifferBeNoneAndBeMoreThanABuffer) {
  const auto job = job_of(3);
  job->on_every_rank([&](int rank) {
    // A ring's 16 KiB are for three: rank 0 gives in four rounds, rank 2 in one, rank 1 never.
    const std::size_t rows = rank == 0 ? 2'501 : rank == 1 ? 0 : 7;
    Ints mine(2 * rows);
    for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = static_cast<std::int32_t>(i) + 10'000 * rank;
    DeviceArray<std::int32_t> tensor(job->device(rank), mine);
    Ints expected;
    for (int i = 0; i < 2 * 2'501; ++i) expected.push_back(i);
    for (int i = 0; i < 2 * 7; ++i) expected.push_back(i + 20'000);
    for (int round = 0; round < 2; ++round) {
      const Ticket ticket =
          (*job)[rank].submit(gather_of(*job, rank, "t", tensor, {static_cast<std::int64_t>(rows), 2}));
      ASSERT_TRUE((*job)[rank].wait(ticket, Deadline::after(20'000'000'000)));
      EXPECT_EQ((*job)[rank].gathered_on_device(ticket).shape, (Rows{2'508, 2}));
      EXPECT_EQ(delivered(*job, rank, ticket), expected);
    }
    EXPECT_EQ(tensor.values(job->stream(rank)), mine);
    DeviceArray<std::int32_t> empty(job->device(rank), {});
    EXPECT_EQ(delivered(*job, rank, (*job)[rank].submit(gather_of(*job, rank, "nothing", empty, {0, 2}))), Ints());
  });
  expect_taken();
}

TEST_P(AnyDataPath, ProcessSetsCommunicateAmongTheirMembersAlone) {
  const auto job = job_of(3);
  job->on_every_rank([&](int rank) {
    Runtime& runtime = (*job)[rank];
    const Ticket added = runtime.add_process_set({0, 2});
    ASSERT_TRUE(runtime.wait(added, Deadline::after(20'000'000'000)));
    const auto set = static_cast<std::uint32_t>(runtime.operation(added)->number);
    runtime.release(added);
    DeviceArray<std::int32_t> tensor(job->device(rank), Ints(5, rank + 1));
    job->run(rank, job->of(rank, "all", tensor, tensor));
    if (rank != 1) {
      Submission submission = job->of(rank, "some", tensor, tensor);
      submission.request.process_set = set;
      job->run(rank, std::move(submission));
      DeviceArray<std::int32_t> rows(job->device(rank), Ints(2, rank));
      submission = gather_of(*job, rank, "rows", rows, {2});
      submission.request.process_set = set;
      EXPECT_EQ(delivered(*job, rank, runtime.submit(std::move(submission))), (Ints{0, 0, 2, 2}));
    }
    EXPECT_EQ(tensor.values(job->stream(rank)), Ints(5, rank == 1 ? 6 : 12));
    testing_support::finish(runtime, runtime.remove_process_set(set));
    job->run(rank, job->of(rank, "all again", tensor, tensor));
    EXPECT_EQ(tensor.values(job->stream(rank)), Ints(5, 30));
  });
  expect_taken();
  if (!GetParam().nccl) return;
  EXPECT_EQ(FakeNccl::calls("ncclCommInitRankConfig"), 5) << "a set has a communicator of its own";
  job->end();
  EXPECT_EQ(FakeNccl::calls("ncclCommDestroy"), 5);
}

TEST_P(AnyDataPath, APeerThatLeavesFailsWhatWaitsForIt) {
  const auto job = job_of(2);
  warm_up(*job);
  DeviceArray<std::int32_t> tensor(job->device(0), Ints(4, 1));
  const Ticket ticket = (*job)[0].submit(job->of(0, "t", tensor, tensor));
  (*job)[1].shutdown(0);
  EXPECT_THROW(job->join(0, ticket), ShutDown);
  (*job)[0].release(ticket);
}

TEST_P(AnyDataPath, ShuttingDownWaitsForWhatIsInStreams) {
  const auto job = job_of(2);
  std::vector<std::unique_ptr<DeviceArray<std::int32_t>>> tensors;
  for (int rank = 0; rank < 2; ++rank) {
    tensors.push_back(std::make_unique<DeviceArray<std::int32_t>>(job->device(rank), Ints(8000, 0)));
  }
  job->on_every_rank([&](int rank) {
    DeviceArray<std::int32_t>& tensor = *tensors[static_cast<std::size_t>(rank)];
    tensor.fill(job->stream(rank), rank + 1);
    const Ticket ticket = (*job)[rank].submit(job->of(rank, "t", tensor, tensor));
    ASSERT_TRUE((*job)[rank].wait(ticket, Deadline::after(20'000'000'000)));
    (*job)[rank].release(ticket);
    (*job)[rank].shutdown(5'000'000'000);
  });
  EXPECT_EQ(FakeNccl::aborted(), 0);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(tensors[static_cast<std::size_t>(rank)]->values(job->stream(rank)), Ints(8000, 3));
  }
}

TEST_P(AnyDataPath, NothingIsLeftOfAJob) {
  FakeGpu gpu;
  {
    const auto job = job_of(2);
    warm_up(*job);
  }
  EXPECT_EQ(FakeGpu::alive(), 0);
}

TEST_P(DirectDataPath, SubmittingAndWaitingBlockNobodyThoughTheGpuIsBusy) { sum_while_busy(*job_of(2)); }

TEST_P(DirectDataPath, StepsThatRepeatThemselvesFollowAScheduleWithoutAControlMessage) {
  const auto job = job_of(2, patient);
  const auto launches = [] {
    return GetParam().nccl ? FakeNccl::calls("ncclGroupStart") : FakeGpu::calls("cuLaunchKernel");
  };
  run_steps(*job, 20, 10);
  const std::uint64_t messages = (*job)[0].counters().control_messages;
  const int before = launches();
  run_steps(*job, 20, 20);
  EXPECT_LT((*job)[0].counters().control_messages - messages, 20U) << "a message for every step";
  EXPECT_LT(launches() - before, 2 * 20 * 20) << "a launch for every tensor";
  expect_taken();
}

TEST_P(DirectDataPath, AllreducesGoOnWhenARankHasJoinedAndFromGpuToGpuAgainAfterwards) {
  const auto job = job_of(2);
  job->on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> tensor(job->device(rank), Ints(10, rank + 1));
    job->run(rank, job->of(rank, "t", tensor, tensor));
    if (rank == 0) {
      job->run(rank, job->of(rank, "t", tensor, tensor));
      EXPECT_EQ(tensor.values(job->stream(rank)), Ints(10, 3));
    }
    testing_support::finish((*job)[rank], (*job)[rank].join("join"));
    const int before = RingJob::staged();
    job->run(rank, job->of(rank, "t", tensor, tensor));
    EXPECT_EQ(tensor.values(job->stream(rank)), Ints(10, 6));
    EXPECT_EQ(RingJob::staged(), before);
  });
}

}  // namespace
}  // namespace ringtune
