// What data paths of tensors on GPUs keep to besides the contract of all paths (data_path_contract_test.cc): nobody
// waits for a GPU, and what is in streams comes to its end. A new path joins with one line (path_job.h).
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime/path_job.h"
#include "warm_up.h"

namespace ringtune {
namespace {

using testing_support::Adjust;
using testing_support::DeviceArray;
using testing_support::FakeGpu;
using testing_support::FakeNccl;
using testing_support::kNcclPath;
using testing_support::kRingBetweenGpusPath;
using testing_support::kRingOnOneGpuPath;
using testing_support::kStagedPath;
using testing_support::name_of_path;
using testing_support::NcclJob;
using testing_support::Path;
using testing_support::PathJob;
using testing_support::patient;
using testing_support::RankBytes;
using testing_support::RingJob;
using testing_support::run_steps;
using testing_support::sum_while_busy;
using testing_support::warm_up;

using Ints = std::vector<std::int32_t>;

constexpr std::size_t kMoreThanARing = RingJob::kBufferBytes * 2 + 13;

class GpuPath : public testing::TestWithParam<Path> {
 protected:
  NcclJob& job_of(int size, const Adjust& adjust = {}) {
    job_ = GetParam().job(size, adjust);
    return *job_->gpus();
  }
  /// The tensors have taken this path and no other.
  void expect_taken() const {
    EXPECT_EQ(RingJob::staged() > 0, GetParam().staged);
    EXPECT_EQ(FakeNccl::calls("ncclGroupStart") > 0, GetParam().nccl);
  }

  std::unique_ptr<PathJob> job_;
};
INSTANTIATE_TEST_SUITE_P(Paths, GpuPath,
                         testing::Values(kNcclPath, kRingOnOneGpuPath, kRingBetweenGpusPath, kStagedPath),
                         name_of_path);

/// From GPU to GPU: an operation is done for the host when its work is in a stream.
class DirectPaths : public GpuPath {};
INSTANTIATE_TEST_SUITE_P(Paths, DirectPaths, testing::Values(kNcclPath, kRingOnOneGpuPath, kRingBetweenGpusPath),
                         name_of_path);

TEST_P(GpuPath, BroadcastGoesFromAnyRootInAnyDtype) {
  NcclJob& job = job_of(3);
  job.on_every_rank([&](int rank) {
    for (int root = 0; root < 3; ++root) {
      const std::vector<std::byte> mine(kMoreThanARing, std::byte(rank + 1));
      RankBytes input(job.device(rank), mine);
      RankBytes output(job.device(rank), std::vector<std::byte>(kMoreThanARing));
      Submission submission = job.of(rank, "b" + std::to_string(root), input.data(), output.data(), DType::kBool,
                                     {static_cast<std::int64_t>(kMoreThanARing)});
      submission.request.kind = CollectiveKind::kBroadcast;
      submission.request.root = root;
      job.run(rank, submission);
      EXPECT_EQ(output.values(job.stream(rank)), std::vector<std::byte>(kMoreThanARing, std::byte(root + 1)));
      EXPECT_EQ(input.values(job.stream(rank)), mine);
    }
  });
  expect_taken();
}

TEST_P(GpuPath, ShuttingDownWaitsForWhatIsInStreams) {
  NcclJob& job = job_of(2);
  std::vector<std::unique_ptr<DeviceArray<std::int32_t>>> tensors;
  for (int rank = 0; rank < 2; ++rank) {
    tensors.push_back(std::make_unique<DeviceArray<std::int32_t>>(job.device(rank), Ints(8000, 0)));
  }
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t>& tensor = *tensors[static_cast<std::size_t>(rank)];
    tensor.fill(job.stream(rank), rank + 1);
    const Ticket ticket = job[rank].submit(job.of(rank, "t", tensor, tensor));
    ASSERT_TRUE(job[rank].wait(ticket, Deadline::after(20'000'000'000)));
    job[rank].release(ticket);
    job[rank].shutdown(5'000'000'000);
  });
  EXPECT_EQ(FakeNccl::aborted(), 0);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(tensors[static_cast<std::size_t>(rank)]->values(job.stream(rank)), Ints(8000, 3));
  }
}

TEST_P(GpuPath, NothingIsLeftOfAJob) {
  FakeGpu gpu;
  warm_up(job_of(2));
  job_.reset();
  EXPECT_EQ(FakeGpu::alive(), 0);
}

TEST_P(DirectPaths, SubmittingAndWaitingBlockNobodyThoughTheGpuIsBusy) { sum_while_busy(job_of(2)); }

TEST_P(DirectPaths, StepsThatRepeatThemselvesFollowAScheduleWithoutAControlMessage) {
  NcclJob& job = job_of(2, patient);
  const auto launches = [] {
    return GetParam().nccl ? FakeNccl::calls("ncclGroupStart") : FakeGpu::calls("cuLaunchKernel");
  };
  run_steps(job, 20, 10);
  const std::uint64_t messages = job[0].counters().control_messages;
  const int before = launches();
  run_steps(job, 20, 20);
  EXPECT_LT(job[0].counters().control_messages - messages, 20U) << "a message for every step";
  EXPECT_LT(launches() - before, 2 * 20 * 20) << "a launch for every tensor";
  expect_taken();
}

}  // namespace
}  // namespace ringtune
