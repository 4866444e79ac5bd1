// Allgather by ringtune's own ring between GPUs, through whole runtimes: rows of all ranks, order, and the timeline.
#include <gtest/gtest.h>

#include "base/error.h"
#include "device_part.h"
#include "gathered.h"
#include "ring_job.h"
#include "runtime/gpu/host_staged_path.h"

namespace ringtune {
namespace {

using testing_support::delivered;
using testing_support::DeviceArray;
using testing_support::FakeGpu;
using testing_support::gather_of;
using testing_support::Part;
using testing_support::RingJob;

using Ints = std::vector<std::int32_t>;

TEST(RingGather, OthersAreReducedBetweenGathersInAnyOrder) {
  RingJob job(2, 2, [](RuntimeOptions& options) { options.nccl_libraries.clear(); });
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> rows(job.device(rank), Ints(3, 0));
    DeviceArray<std::int32_t> sum(job.device(rank), Ints(5'000, 0));
    for (int round = 1; round <= 5; ++round) {
      rows.fill(job.stream(rank), round * (rank + 1));
      sum.fill(job.stream(rank), round + rank);
      const Ticket gathered = job[rank].submit(gather_of(job, rank, "rows", rows, {3}));
      const Ticket summed = job[rank].submit(job.of(rank, "sum", sum, sum));
      job.join(rank, summed);
      job[rank].release(summed);
      EXPECT_EQ(delivered(job, rank, gathered), (Ints{round, round, round, 2 * round, 2 * round, 2 * round}));
      EXPECT_EQ(sum.values(job.stream(rank)), Ints(5'000, 2 * round + 1));
    }
  });
  EXPECT_EQ(RingJob::staged(), 0);
}

TEST(RingGather, WhereOneRankHasNoKernelsAllGoThroughTheHost) {
  RingJob job(3, 3, [](RuntimeOptions& options) {
    options.nccl_libraries.clear();
    if (options.rank == 1)
      options.gpu_kernels = [](int) -> std::vector<std::byte> { throw DeviceError("no compiler"); };
  });
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> tensor(job.device(rank), Ints(2, rank));
    for (int round = 0; round < 2; ++round) {
      EXPECT_EQ(delivered(job, rank, job[rank].submit(gather_of(job, rank, "t", tensor, {2}))),
                (Ints{0, 0, 1, 1, 2, 2}));
    }
  });
  EXPECT_EQ(RingJob::staged(), 3 * 2);
}

TEST(RingGather, ACallOfTheDriverThatFailsEndsTheJobOnAllRanks) {
  FakeGpu gpu;
  {
    RingJob job(3);
    std::vector<std::unique_ptr<DeviceArray<std::int32_t>>> tensors;
    for (int rank = 0; rank < 3; ++rank) {
      tensors.push_back(std::make_unique<DeviceArray<std::int32_t>>(job.device(rank), Ints(2, rank)));
    }
    const auto gather = [&](int rank) {
      const DeviceArray<std::int32_t>& tensor = *tensors[static_cast<std::size_t>(rank)];
      const Ticket ticket = job[rank].submit(gather_of(job, rank, "t", tensor, {2}));
      job.join(rank, ticket);
      job[rank].release(ticket);
    };
    job.on_every_rank(gather);
    FakeGpu::fail("cuMemcpyDtoDAsync_v2", 3, 999);  // in the middle of a round
    job.on_every_rank([&](int rank) {
      EXPECT_THROW(
          {
            for (int i = 0; i < 1000; ++i) gather(rank);
          },
          Error);
      (void)tensors[static_cast<std::size_t>(rank)]->values(job.stream(rank));  // returns
    });
    job.end();
  }
  EXPECT_EQ(FakeGpu::alive(), 0);
}

TEST(RingGather, InTheTimelineOwnRowsArePackedAndAllAreUnpacked) {
  const ringtune::testing_support::TemporaryFile file;
  RingJob job(2);
  FakeGpu::set_eager();
  const auto gather = [&] {
    job.on_every_rank([&](int rank) {
      const std::size_t rows = rank == 0 ? 5'000 : 1;
      DeviceArray<std::int32_t> tensor(job.device(rank), Ints(rows, rank));
      Ints expected(5'000, 0);
      expected.push_back(1);
      const Ticket ticket = job[rank].submit(gather_of(job, rank, "t", tensor, {static_cast<std::int64_t>(rows)}));
      EXPECT_EQ(delivered(job, rank, ticket), expected);
    });
  };
  gather();
  job[0].start_timeline({.path = file.path()});
  gather();
  job[0].stop_timeline();
  Part part(file.path());
  for (const char* const name : {"MEMCPY_IN_FUSION_BUFFER", "RING_ALLGATHER", "MEMCPY_OUT_FUSION_BUFFER"}) {
    ASSERT_EQ(part.spans[name].size(), 1U) << name << ": in several rounds";
    EXPECT_EQ(part.spans[name].front().bytes, 4 * 5'001) << name;
    EXPECT_EQ(part.spans[name].front().device, 0) << name;
  }
  EXPECT_EQ(part.spans["RING_ALLGATHER"].front().algorithm, "gpu-ring");
}

}  // namespace
}  // namespace ringtune
