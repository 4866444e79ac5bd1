// Tensors from GPU to GPU through whole runtimes, by ringtune's own ring: results, order, and when the ring carries
// them.
#include <gtest/gtest.h>

#include "base/error.h"
#include "ring_job.h"
#include "thrown.h"
#include "warm_up.h"

namespace ringtune {
namespace {

using testing_support::DeviceArray;
using testing_support::FakeGpu;
using testing_support::FakeNccl;
using testing_support::message_of;
using testing_support::no_compiler;
using testing_support::RingJob;
using testing_support::warm_up;

using Ints = std::vector<std::int32_t>;
using Floats = std::vector<float>;

void without_nccl(RuntimeOptions& options) { options.nccl_libraries.clear(); }

TEST(Ring, WhereAllHaveAGpuNcclComesFirst) {
  RingJob job(2, 2);
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> tensor(job.device(rank), Ints(10, rank + 1));
    job.run(rank, job.of(rank, "t", tensor, tensor));
    EXPECT_EQ(tensor.values(job.stream(rank)), Ints(10, 3));
  });
  EXPECT_EQ(FakeNccl::calls("ncclAllReduce"), 2);
  EXPECT_EQ(FakeGpu::calls("cuModuleLoadData"), 0) << "no kernels are needed";
}

TEST(Ring, RanksWithAGpuEachReachOneAnothersMemory) {
  RingJob job(2, 2, without_nccl);
  warm_up(job);
  EXPECT_GT(FakeGpu::calls("cuCtxEnablePeerAccess"), 0);
}

TEST(Ring, WhatNcclCannotCarryGoesByTheRing) {
  RingJob job(2, 2);
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> tensor(job.device(rank), Ints(10, 0x0001'0001));
    Submission halves = job.of(rank, "t", tensor, tensor);
    halves.request.dtype = DType::kInt16;
    halves.request.shape = {20};
    job.run(rank, std::move(halves));
    EXPECT_EQ(tensor.values(job.stream(rank)), Ints(10, 0x0002'0002));
  });
  EXPECT_EQ(FakeNccl::calls("ncclAllReduce"), 0);
  EXPECT_EQ(RingJob::staged(), 0);
}

/// Ranks that cannot all use the ring: all take the next data path, and no operation is lost.
struct RingCase {
  const char* what;
  int gpus;
  std::function<void(RuntimeOptions&)> adjust;
  const char* failing = nullptr;  // a call of the driver that fails on one rank
  bool staged = true;
};
void PrintTo(const RingCase& one, std::ostream* out) { *out << one.what; }

class RingInability : public testing::TestWithParam<RingCase> {};

TEST_P(RingInability, MakesAllRanksTakeTheNextWay) {
  const RingCase one = GetParam();
  RingJob job(3, one.gpus, one.adjust);
  if (one.failing != nullptr) FakeGpu::fail(one.failing, 1, 999);
  constexpr std::size_t large = (8 << 20) / 4 + 10;  // two parts where it is staged
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> tensor(job.device(rank), Ints(large, 0));
    DeviceArray<std::int32_t> other(job.device(rank), Ints(10, 0));
    for (int round = 1; round <= 3; ++round) {
      if (one.staged) {
        tensor.fill(job.stream(rank), round * (rank + 1));
        job.run(rank, job.of(rank, "t", tensor, tensor));
        EXPECT_EQ(tensor.values(job.stream(rank)), Ints(large, 6 * round));
      }
      other.fill(job.stream(rank), round * (rank + 1));
      job.run(rank, job.of(rank, "other", other, other));
      EXPECT_EQ(other.values(job.stream(rank)), Ints(10, 6 * round));
    }
  });
  if (one.staged) {
    EXPECT_EQ(RingJob::staged(), 3 * 3 * 3);
  } else {
    EXPECT_EQ(RingJob::staged(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, RingInability,
    testing::Values(RingCase{"one without kernels", 3,
                             [](RuntimeOptions& o) {
                               without_nccl(o);
                               if (o.rank == 1) o.gpu_kernels = nullptr;
                             }},
                    RingCase{"one without a compiler", 3,
                             [](RuntimeOptions& o) {
                               without_nccl(o);
                               if (o.rank == 2) o.gpu_kernels = no_compiler;
                             }},
                    RingCase{"two that share a GPU", 2,
                             [](RuntimeOptions& o) { o.gpu_data_path = GpuDataPath::kAuto; }},
                    RingCase{"one told to stage", 3,
                             [](RuntimeOptions& o) {
                               without_nccl(o);
                               if (o.rank == 0) o.gpu_data_path = GpuDataPath::kStaged;
                             }},
                    RingCase{"one that cannot load the kernels", 3, without_nccl, "cuModuleLoadData"},
                    RingCase{"one that cannot register words", 3, without_nccl, "cuMemHostRegister_v2"},
                    RingCase{"one that cannot reach another GPU", 3, without_nccl, "cuCtxEnablePeerAccess"},
                    // Not by NCCL, but by the ring.
                    RingCase{"one without NCCL", 3,
                             [](RuntimeOptions& o) {
                               if (o.rank == 1) o.nccl_libraries.clear();
                             },
                             nullptr, false},
                    RingCase{"one told to take the ring", 3,
                             [](RuntimeOptions& o) {
                               if (o.rank == 1) o.gpu_data_path = GpuDataPath::kRing;
                             },
                             nullptr, false}),
    [](const auto& each) {
      std::string name = each.param.what;
      std::replace(name.begin(), name.end(), ' ', '_');
      return name;
    });

TEST(Ring, WhereItIsAskedForNcclIsLeftAlone) {
  RingJob job(2, 2, [](RuntimeOptions& options) { options.gpu_data_path = GpuDataPath::kRing; });
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> tensor(job.device(rank), Ints(10, rank + 1));
    job.run(rank, job.of(rank, "t", tensor, tensor));
    EXPECT_EQ(tensor.values(job.stream(rank)), Ints(10, 3));
  });
  EXPECT_EQ(FakeNccl::calls("ncclCommInitRankConfig"), 0);
  EXPECT_EQ(RingJob::staged(), 0);
}

TEST(Ring, WhereItIsAskedForAndCannotBeTheOperationSaysWhy) {
  RingJob job(2, [](RuntimeOptions& options) {
    options.gpu_data_path = GpuDataPath::kRing;
    if (options.rank == 1) options.gpu_kernels = no_compiler;
  });
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> tensor(job.device(rank), Ints(10, 1));
    for (int i = 0; i < 2; ++i) {
      const Ticket ticket = job[rank].submit(job.of(rank, "t", tensor, tensor));
      EXPECT_EQ(
          message_of<DeviceError>([&] { job.join(rank, ticket); }),
          "rank 1: kernels for GPUs need a compiler (RINGTUNE_GPU_DATA_PATH=ring allows no other data path instead)");
      job[rank].release(ticket);
    }
  });
}

TEST(Ring, WhereItIsAskedForAndThereAreNoKernelsTheSubmissionSaysWhy) {
  RingJob job(2, [](RuntimeOptions& options) {
    options.gpu_data_path = GpuDataPath::kRing;
    options.gpu_kernels = nullptr;
  });
  DeviceArray<std::int32_t> tensor(job.device(0), Ints(10, 1));
  EXPECT_EQ(
      message_of<DeviceError>([&] { (void)job[0].submit(job.of(0, "t", tensor, tensor)); }),
      "tensor 't' cannot go by ringtune's ring, which RINGTUNE_GPU_DATA_PATH=ring asks for: there are no kernels for "
      "its GPUs on this rank");
}

TEST(Ring, TensorsOfABatchHaveFactorsOfTheirOwn) {
  RingJob job(2);
  job.on_every_rank([&](int rank) {
    constexpr int kTensors = 6;
    std::vector<std::unique_ptr<DeviceArray<float>>> tensors;
    std::vector<Ticket> tickets;
    for (int i = 0; i < kTensors; ++i) {
      tensors.push_back(std::make_unique<DeviceArray<float>>(job.device(rank), Floats(33, 1.0F)));
      Submission submission = job.of(rank, "t" + std::to_string(i), *tensors.back(), *tensors.back());
      submission.request.prescale = i < 3 ? 1.0 : 2.0;
      submission.request.postscale = i % 2 == 0 ? 1.0 : 4.0;
      submission.request.group = "group";
      submission.request.group_size = kTensors;
      tickets.push_back(job[rank].submit(std::move(submission)));
    }
    for (int i = 0; i < kTensors; ++i) {
      const auto at = static_cast<std::size_t>(i);
      job.join(rank, tickets[at]);
      job[rank].release(tickets[at]);
      const float factor = (i < 3 ? 1.0F : 2.0F) * (i % 2 == 0 ? 1.0F : 4.0F);
      EXPECT_EQ(tensors[at]->values(job.stream(rank)), Floats(33, 2 * factor)) << "tensor " << i;
    }
  });
}

}  // namespace
}  // namespace ringtune
