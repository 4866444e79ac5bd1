// What NCCL can carry only packed - allreduces that travel as 16 bits, and of scaled integers - goes by it where all
// members have the kernels, even a tensor alone, and another data path where one has not; what needs no kernels stays
// with NCCL.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/device_bytes.h"
#include "packed_job.h"

namespace ringtune {
namespace {

using testing_support::DeviceArray;
using testing_support::FakeGpu;
using testing_support::FakeNccl;
using testing_support::Inability;
using testing_support::no_compiler;
using testing_support::PackedJob;
using testing_support::patient;
using testing_support::RingJob;
using testing_support::run_group;
using testing_support::run_steps;

using Ints = std::vector<std::int32_t>;
using Floats = std::vector<float>;

Submission as_wire(Submission submission, DType wire) {
  submission.request.wire = wire;
  return submission;
}

Submission average(Submission submission) {
  submission.request.op = ReduceOp::kAverage;
  return submission;
}

TEST(NcclMustPack, ATensorAloneThatTravelsAs16BitsIsOneCall) {
  for (const DType wire : {DType::kFloat16, DType::kBfloat16}) {
    PackedJob job(2);
    job.on_every_rank([&](int rank) {
      DeviceArray<float> tensor(job.device(rank), Floats(1000, -1.0F));
      for (int round = 1; round <= 3; ++round) {
        tensor.fill(job.stream(rank), 0.5F * static_cast<float>(round * (rank + 1)));
        job.run(rank, as_wire(job.of(rank, "t", tensor, tensor), wire));
        EXPECT_EQ(tensor.values(job.stream(rank)), Floats(1000, 1.5F * static_cast<float>(round)));
      }
    });
    EXPECT_EQ(FakeNccl::calls("ncclAllReduce"), 2 * 3);
    EXPECT_EQ(FakeGpu::calls("cuLaunchKernel"), 2 * 2 * 3) << "one to pack, one to unpack";
    EXPECT_EQ(RingJob::staged(), 0);
  }
}

TEST(NcclMustPack, ItIsRoundedToTheTypeThatTravels) {
  PackedJob job(2);
  job.on_every_rank([&](int rank) {
    // 2049 is no float16, and 2048 + 3 is none either: rounded to even before and after the sum.
    DeviceArray<float> tensor(job.device(rank), Floats(5, rank == 0 ? 2049.0F : 3.0F));
    job.run(rank, as_wire(job.of(rank, "t", tensor, tensor), DType::kFloat16));
    EXPECT_EQ(tensor.values(job.stream(rank)), Floats(5, 2052.0F));
  });
  EXPECT_EQ(FakeNccl::calls("ncclAllReduce"), 2);
}

TEST(NcclMustPack, ABatchThatTravelsAs16BitsIsOneCall) {
  PackedJob job(3);
  job.on_every_rank([&](int rank) {
    DeviceArray<float> first(job.device(rank), Floats(100, 0.25F));
    DeviceArray<float> second(job.device(rank), Floats(7, static_cast<float>(rank)));
    run_group(job, rank,
              {average(as_wire(job.of(rank, "a", first, first), DType::kBfloat16)),
               average(as_wire(job.of(rank, "b", second, second), DType::kBfloat16))});
    EXPECT_EQ(first.values(job.stream(rank)), Floats(100, 0.25F));
    EXPECT_EQ(second.values(job.stream(rank)), Floats(7, 1.0F));
  });
  EXPECT_EQ(FakeNccl::calls("ncclAllReduce"), 3);
  EXPECT_EQ(RingJob::staged(), 0);
}

TEST(NcclMustPack, IntegersAreScaledByTheHostsRule) {
  PackedJob job(2);
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> tensor(job.device(rank), Ints(10, 2 * rank + 3));
    job.run(rank, average(job.of(rank, "mean", tensor, tensor)));
    EXPECT_EQ(tensor.values(job.stream(rank)), Ints(10, 4));
    DeviceArray<std::int32_t> odd(job.device(rank), Ints(10, -3 - rank));
    job.run(rank, average(job.of(rank, "odd", odd, odd)));
    EXPECT_EQ(odd.values(job.stream(rank)), Ints(10, -3)) << "-3.5, toward zero";
    DeviceArray<std::int32_t> largest(job.device(rank), Ints(10, rank + 1));
    Submission scaled = job.of(rank, "largest", largest, largest);
    scaled.request.op = ReduceOp::kMax;
    scaled.request.prescale = 2.5;  // 2.5 and 5, truncated
    scaled.request.postscale = 3.0;
    job.run(rank, std::move(scaled));
    EXPECT_EQ(largest.values(job.stream(rank)), Ints(10, 15));
  });
  EXPECT_EQ(FakeNccl::calls("ncclAllReduce"), 2 * 3);
  EXPECT_EQ(RingJob::staged(), 0);
}

TEST(NcclMustPack, AnEmptyTensorIsAgreedOnLikeAnyOther) {
  PackedJob job(2);
  job.on_every_rank([&](int rank) {
    DeviceArray<float> none(job.device(rank), {});
    job.run(rank, as_wire(job.of(rank, "t", none, none), DType::kFloat16));
    EXPECT_EQ(none.values(job.stream(rank)), Floats());
  });
}

TEST(NcclMustPack, StepsFollowASchedule) {
  PackedJob job(2, patient);
  const auto steps = [&](int count) {
    job.on_every_rank([&](int rank) {
      DeviceArray<float> tensor(job.device(rank), Floats(50, 0.0F));
      for (int step = 0; step < count; ++step) {
        tensor.fill(job.stream(rank), static_cast<float>(step));
        job.run(rank, as_wire(job.of(rank, "t", tensor, tensor), DType::kFloat16));
        ASSERT_EQ(tensor.values(job.stream(rank)), Floats(50, static_cast<float>(2 * step)));
      }
    });
  };
  steps(10);
  const auto messages = job[0].counters().control_messages;
  steps(30);
  EXPECT_LT(job[0].counters().control_messages - messages, 30) << "a message for every step";
}

/// Ranks that cannot all pack.
class NcclMustPackInability : public testing::TestWithParam<Inability> {};

TEST_P(NcclMustPackInability, OfOneRankSendsItAnotherWayAndThePlainOnesGoOnByNccl) {
  const Inability& one = GetParam();
  PackedJob job(3, one.adjust);
  std::vector<std::unique_ptr<DeviceArray<float>>> tensors;  // made before the call fails
  for (int rank = 0; rank < 3; ++rank) {
    tensors.push_back(std::make_unique<DeviceArray<float>>(job.device(rank), Floats(9, 0.5F)));
  }
  if (one.call != nullptr) FakeGpu::fail(one.call, 0, 2);
  job.on_every_rank([&](int rank) {
    DeviceArray<float>& tensor = *tensors[static_cast<std::size_t>(rank)];
    for (int round = 0; round < 2; ++round) {
      tensor.fill(job.stream(rank), 0.5F);
      job.run(rank, as_wire(job.of(rank, "cast", tensor, tensor), DType::kBfloat16));
      EXPECT_EQ(tensor.values(job.stream(rank)), Floats(9, 1.5F));
    }
  });
  EXPECT_EQ(FakeNccl::calls("ncclAllReduce"), 0);
  job.on_every_rank([&](int rank) {
    DeviceArray<float>& tensor = *tensors[static_cast<std::size_t>(rank)];
    job.run(rank, job.of(rank, "plain", tensor, tensor));
    EXPECT_EQ(tensor.values(job.stream(rank)), Floats(9, 4.5F));
  });
  EXPECT_EQ(FakeNccl::calls("ncclAllReduce"), 3);
}

INSTANTIATE_TEST_SUITE_P(Ranks, NcclMustPackInability,
                         testing::Values(Inability{"without kernels",
                                                   [](RuntimeOptions& o) {
                                                     if (o.rank == 1) o.gpu_kernels = nullptr;
                                                   }},
                                         Inability{"without a compiler",
                                                   [](RuntimeOptions& o) {
                                                     if (o.rank == 2) o.gpu_kernels = no_compiler;
                                                   }},
                                         Inability{"without a compiler where only NCCL is asked for",
                                                   [](RuntimeOptions& o) {
                                                     o.gpu_data_path = GpuDataPath::kNccl;
                                                     if (o.rank == 2) o.gpu_kernels = no_compiler;
                                                   }},
                                         Inability{"that cannot load them", nullptr, "cuModuleLoadData"},
                                         Inability{"without memory", nullptr, "cuMemAlloc_v2"}),
                         [](const auto& each) {
                           std::string name = each.param.what;
                           std::replace(name.begin(), name.end(), ' ', '_');
                           return name;
                         });

TEST(NcclMustPack, WhereRanksShareAGpuItGoesByTheRing) {
  RingJob job(2);
  job.on_every_rank([&](int rank) {
    DeviceArray<float> tensor(job.device(rank), Floats(10, 1.5F));
    job.run(rank, as_wire(job.of(rank, "t", tensor, tensor), DType::kBfloat16));
    EXPECT_EQ(tensor.values(job.stream(rank)), Floats(10, 3.0F));
  });
  EXPECT_EQ(FakeNccl::calls("ncclAllReduce"), 0);
  EXPECT_EQ(RingJob::staged(), 0);
}

}  // namespace
}  // namespace ringtune
