// Failures of NCCL within hosts and links across: every rank is told, no rank hangs, nothing is left.
#include <gtest/gtest.h>

#include <thread>

#include "base/error.h"
#include "hierarchy_job.h"
#include "thrown.h"
#include "warm_up.h"

namespace ringtune {
namespace {

using testing_support::DeviceArray;
using testing_support::FakeGpu;
using testing_support::FakeNccl;
using testing_support::HierarchyJob;
using testing_support::kTwoByTwo;
using testing_support::message_of;
using testing_support::warm_up;

using Ints = std::vector<std::int32_t>;

/// An allreduce of each rank's own, so that all is connected.
/// The next operations of all ranks, of which some may go through: each is told at last. What is in streams meanwhile
/// has its memory until the job has ended.
void expect_end(HierarchyJob& job) {
  std::vector<std::unique_ptr<DeviceArray<std::int32_t>>> tensors;
  for (int rank = 0; rank < job.size(); ++rank) {
    tensors.push_back(std::make_unique<DeviceArray<std::int32_t>>(job.device(rank), Ints(9, 1)));
  }
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t>& tensor = *tensors[static_cast<std::size_t>(rank)];
    const auto go_on = [&] {
      for (int i = 0; i < 1000; ++i) job.run(rank, job.of(rank, "next", tensor, tensor));
    };
    EXPECT_THROW(go_on(), Error);
  });
  job.end();
}

TEST(HierarchyFailures, WhereOneRankDoesNotConnectWithinItsHostAllOfThemStage) {
  HierarchyJob job(kTwoByTwo, [](RuntimeOptions& options) {
    options.gpu_data_path = GpuDataPath::kAuto;
    options.connect_timeout_ns = 4'000'000'000;
  });
  // Four calls in vain across hosts, and the first one within them.
  for (int call = 0; call < 5; ++call) FakeNccl::fail("ncclCommInitRankConfig", call, 3);
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> tensor(job.device(rank), Ints(8, rank + 1));
    for (int round = 0; round < 3; ++round) {
      tensor.fill(job.stream(rank), rank + 1);
      job.run(rank, job.of(rank, "t", tensor, tensor));
      EXPECT_EQ(tensor.values(job.stream(rank)), Ints(8, 10));
    }
  });
  EXPECT_EQ(FakeNccl::calls("ncclCommInitRankConfig"), 8);
  EXPECT_EQ(FakeNccl::calls("ncclReduceScatter"), 0);
}

TEST(HierarchyFailures, WhereItIsAskedForAllRanksSayWhoDidNotConnect) {
  HierarchyJob job(kTwoByTwo, [](RuntimeOptions& options) { options.connect_timeout_ns = 4'000'000'000; });
  FakeNccl::fail("ncclCommInitRankConfig", 0, 3);
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> tensor(job.device(rank), Ints(8, 1));
    const std::string message = message_of<DeviceError>([&] { job.run(rank, job.of(rank, "t", tensor, tensor)); });
    EXPECT_EQ(message.find("NCCL did not connect on rank "), 0U) << message;
    EXPECT_NE(message.find("RINGTUNE_GPU_DATA_PATH=nccl-host"), std::string::npos) << message;
  });
}

TEST(HierarchyFailures, WhereItIsAskedForAndMissingTheSubmissionSaysWhy) {
  HierarchyJob job(kTwoByTwo, [](RuntimeOptions& options) { options.nccl_libraries = {"/no/such/libnccl.so.2"}; });
  DeviceArray<std::int32_t> tensor(job.device(0), Ints(10, 1));
  const std::string message = message_of<DeviceError>([&] { (void)job[0].submit(job.of(0, "t", tensor, tensor)); });
  EXPECT_EQ(
      message.find("tensor 't' cannot go by NCCL within hosts, which RINGTUNE_GPU_DATA_PATH=nccl-host asks for: NCCL "
                   "cannot be opened (/no/such/libnccl.so.2"),
      0U)
      << message;
}

TEST(HierarchyFailures, ARankOfAnotherMindSendsAllOfThemThroughTheHost) {
  HierarchyJob job(kTwoByTwo, [](RuntimeOptions& options) {
    options.gpu_data_path = options.rank == 3 ? GpuDataPath::kStaged : GpuDataPath::kAuto;
    if (options.rank == 2) options.nccl_libraries = {"/no/such/libnccl.so.2"};
  });
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> tensor(job.device(rank), Ints(8, rank + 1));
    job.run(rank, job.of(rank, "t", tensor, tensor));
    EXPECT_EQ(tensor.values(job.stream(rank)), Ints(8, 10));
  });
  EXPECT_EQ(FakeNccl::calls("ncclCommInitRankConfig"), 0);
}

/// A call that fails on one rank, in either stage.
class HierarchyFault : public ::testing::TestWithParam<const char*> {};

TEST_P(HierarchyFault, EndsTheJobOnAllRanks) {
  HierarchyJob job(kTwoByTwo);
  warm_up(job);
  FakeNccl::fail(GetParam(), 0, 3);
  expect_end(job);
}

INSTANTIATE_TEST_SUITE_P(Calls, HierarchyFault,
                         ::testing::Values("ncclReduceScatter", "ncclAllReduce", "ncclAllGather", "ncclGroupEnd"));

TEST(HierarchyFailures, AnErrorInAStreamEndsTheJobOnAllRanksAndSaysWhere) {
  HierarchyJob job(kTwoByTwo);
  warm_up(job);
  FakeNccl::hang();
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> tensor(job.device(rank), Ints(8, 1));
    const Ticket ticket = job[rank].submit(job.of(rank, "t", tensor, tensor));
    while (FakeNccl::calls("ncclReduceScatter") < 8) std::this_thread::yield();
    if (rank == 0) FakeNccl::break_rank(0, 3);  // the first of each host
    const std::string message = message_of<Error>([&] { job.join(rank, ticket); });
    EXPECT_NE(message.find("an operation of NCCL failed: internal error"), std::string::npos) << message;
    job[rank].release(ticket);
    EXPECT_EQ(tensor.values(job.stream(rank)), Ints(8, 1)) << "nothing is written before all have the sums";
  });
  job.end();
  EXPECT_EQ(FakeNccl::aborted(), 4);
}

TEST(HierarchyFailures, ShuttingDownIsBoundedWhileAHostsSumNeverComes) {
  HierarchyJob job(kTwoByTwo);
  warm_up(job);
  FakeNccl::hang();
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> tensor(job.device(rank), Ints(8, 1));
    const Ticket ticket = job[rank].submit(job.of(rank, "t", tensor, tensor));
    while (FakeNccl::calls("ncclReduceScatter") < 8) std::this_thread::yield();
    job[rank].shutdown(1'000'000'000);
    EXPECT_THROW(job.join(rank, ticket), Error);
    job[rank].release(ticket);
  });
  EXPECT_EQ(FakeNccl::aborted(), 4);
}

TEST(HierarchyFailures, APeerThatLeavesFailsWhatWaitsForIt) {
  HierarchyJob job(kTwoByTwo);
  warm_up(job);
  job.on_every_rank([&](int rank) {
    if (rank == 3) return job[3].shutdown(0);
    DeviceArray<std::int32_t> tensor(job.device(rank), Ints(4, 1));
    const Ticket ticket = job[rank].submit(job.of(rank, "t", tensor, tensor));
    EXPECT_THROW(job.join(rank, ticket), ShutDown);
    job[rank].release(ticket);
  });
}

TEST(HierarchyFailures, ADriverThatCannotCopyASliceEndsTheJobOnAllRanks) {
  HierarchyJob job(kTwoByTwo);
  warm_up(job);
  FakeGpu::fail("cuMemcpyDtoHAsync_v2", 0, 999);
  expect_end(job);
}

TEST(HierarchyFailures, NothingIsLeftOfAJob) {
  FakeGpu gpu;
  {
    HierarchyJob job(kTwoByTwo);
    warm_up(job);
  }
  EXPECT_EQ(FakeGpu::alive(), 0);
}

}  // namespace
}  // namespace ringtune
