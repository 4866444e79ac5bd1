// Allreduces by NCCL within hosts and over links across, on the fake NCCL: results, data paths, order.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "device/elements.h"
#include "hierarchy_job.h"
#include "runtime/gpu/device_operation.h"
#include "thrown.h"

namespace ringtune {
namespace {

using testing_support::DeviceArray;
using testing_support::FakeGpu;
using testing_support::FakeNccl;
using testing_support::HierarchyJob;
using testing_support::kTwoByTwo;
using testing_support::message_of;
using testing_support::NcclJob;
using testing_support::part_hosts;
using testing_support::patient;
using testing_support::RankBytes;
using testing_support::run_steps;

using Ints = std::vector<std::int32_t>;
using Hosts = std::vector<std::string>;

TEST(HostSlice, SharesAreEqualAndWhatIsLeftIsEverybodys) {
  const HostSlice second = host_slice(11, 1, 3);
  EXPECT_EQ(second.begin, 3U);
  EXPECT_EQ(second.share, 3U);
  EXPECT_EQ(second.rest_begin, 9U);
  EXPECT_EQ(second.rest, 2U);
  EXPECT_EQ(second.count(), 5U);
  EXPECT_EQ(host_slice(2, 2, 3).share, 0U);
  EXPECT_EQ(host_slice(2, 2, 3).count(), 2U);
  EXPECT_EQ(host_slice(0, 0, 2).count(), 0U);
}

class HierarchyHosts : public ::testing::TestWithParam<Hosts> {};

TEST_P(HierarchyHosts, SumsOfEverySizeInPlaceAndNot) {
  HierarchyJob job(GetParam());
  job.on_every_rank([&](int rank) {
    for (const std::size_t count : {0, 1, 2, 3, 5, 6, 1000, 200'003}) {
      Ints mine(count);
      Ints sum(count);
      for (std::size_t i = 0; i < count; ++i) {
        mine[i] = static_cast<std::int32_t>(i % 1000) + 7 * rank;
        sum[i] = job.size() * static_cast<std::int32_t>(i % 1000) + 7 * job.size() * (job.size() - 1) / 2;
      }
      DeviceArray<std::int32_t> input(job.device(rank), mine);
      DeviceArray<std::int32_t> output(job.device(rank), Ints(count, -1));
      job.run(rank, job.of(rank, "out" + std::to_string(count), input, output));
      EXPECT_EQ(output.values(job.stream(rank)), sum) << count;
      EXPECT_EQ(input.values(job.stream(rank)), mine) << count;
      job.run(rank, job.of(rank, "in" + std::to_string(count), input, input));
      EXPECT_EQ(input.values(job.stream(rank)), sum) << count;
    }
  });
  EXPECT_EQ(FakeNccl::calls("ncclCommInitRankConfig"), job.size());
  EXPECT_EQ(FakeNccl::calls("ncclReduceScatter"), FakeNccl::calls("ncclAllGather"));
  EXPECT_GT(FakeNccl::calls("ncclReduceScatter"), 0);
}

INSTANTIATE_TEST_SUITE_P(Layouts, HierarchyHosts,
                         ::testing::Values(kTwoByTwo, Hosts{"a", "b", "a", "b"}, Hosts{"a", "a", "a", "b", "b", "b"},
                                           Hosts{"a", "a", "b", "b", "c", "c"}));

/// A dtype and an operation, against float64 on the host.
struct HierarchyCase {
  DType dtype;
  ReduceOp op;
  double prescale = 1.0;
  double postscale = 1.0;
};
void PrintTo(const HierarchyCase& one, std::ostream* out) { *out << name_of(one.dtype) << " " << name_of(one.op); }

class HierarchyReduction : public ::testing::TestWithParam<HierarchyCase> {};

double value_of(int rank, std::size_t i) { return static_cast<double>((static_cast<int>(i) + 3 * rank) % 5 + 1); }

/// The reduction of element i over four ranks.
double expected_of(const HierarchyCase& one, std::size_t i) {
  double result = value_of(0, i) * one.prescale;
  for (int rank = 1; rank < 4; ++rank) {
    const double next = value_of(rank, i) * one.prescale;
    if (one.op == ReduceOp::kMin) {
      result = std::min(result, next);
    } else if (one.op == ReduceOp::kMax) {
      result = std::max(result, next);
    } else {
      result = one.op == ReduceOp::kProduct ? result * next : result + next;
    }
  }
  const double scaled = result * one.postscale;
  return one.op == ReduceOp::kAverage ? scaled / 4 : scaled;
}

TEST_P(HierarchyReduction, IsThatOfFloat64) {
  const HierarchyCase one = GetParam();
  constexpr std::size_t kCount = 77;
  const std::size_t item = size_of(one.dtype);
  HierarchyJob job(kTwoByTwo);
  job.on_every_rank([&](int rank) {
    std::vector<std::byte> bytes(kCount * item);
    for (std::size_t i = 0; i < kCount; ++i) {
      elements::from_double(one.dtype, &bytes[i * item], value_of(rank, i));
    }
    RankBytes input(job.device(rank), bytes);
    RankBytes output(job.device(rank), std::vector<std::byte>(bytes.size()));
    Submission submission = job.of(rank, "t", input.data(), output.data(), one.dtype, {7, 11});
    submission.request.op = one.op;
    submission.request.prescale = one.prescale;
    submission.request.postscale = one.postscale;
    job.run(rank, submission);
    const std::vector<std::byte> got = output.values(job.stream(rank));
    const double relative = one.dtype == DType::kBfloat16 ? 0.02 : one.dtype == DType::kFloat16 ? 0.002 : 1e-6;
    for (std::size_t i = 0; i < kCount; ++i) {
      const double want = expected_of(one, i);
      const double exact = is_floating(one.dtype) ? want : std::trunc(want);
      const double tolerance = is_floating(one.dtype) ? relative * std::fabs(want) : 1.0 - 1e-9;
      ASSERT_NEAR(elements::as_double(one.dtype, &got[i * item]), exact,
                  one.op == ReduceOp::kAverage || is_floating(one.dtype) ? tolerance : 0.0)
          << "element " << i;
    }
  });
  EXPECT_EQ(FakeNccl::calls("ncclReduceScatter"), 4);
}

INSTANTIATE_TEST_SUITE_P(
    All, HierarchyReduction,
    ::testing::Values(
        HierarchyCase{DType::kUint8, ReduceOp::kSum}, HierarchyCase{DType::kInt8, ReduceOp::kMax},
        HierarchyCase{DType::kInt32, ReduceOp::kSum}, HierarchyCase{DType::kInt32, ReduceOp::kProduct},
        HierarchyCase{DType::kInt32, ReduceOp::kAverage}, HierarchyCase{DType::kInt64, ReduceOp::kMin},
        HierarchyCase{DType::kFloat16, ReduceOp::kSum}, HierarchyCase{DType::kFloat16, ReduceOp::kAverage},
        HierarchyCase{DType::kFloat16, ReduceOp::kSum, 0.25, 2.0}, HierarchyCase{DType::kBfloat16, ReduceOp::kSum},
        HierarchyCase{DType::kBfloat16, ReduceOp::kAverage, 0.5, 1.0}, HierarchyCase{DType::kFloat32, ReduceOp::kSum},
        HierarchyCase{DType::kFloat32, ReduceOp::kAverage, 0.125, 3.0}, HierarchyCase{DType::kFloat32, ReduceOp::kMin},
        HierarchyCase{DType::kFloat32, ReduceOp::kMax}, HierarchyCase{DType::kFloat32, ReduceOp::kProduct},
        HierarchyCase{DType::kFloat64, ReduceOp::kSum, 1.5, 1.5}, HierarchyCase{DType::kFloat64, ReduceOp::kAverage}));

TEST(Hierarchy, IsTakenWhereNcclDoesNotConnectAcrossHosts) {
  HierarchyJob job(kTwoByTwo, [](RuntimeOptions& options) { options.gpu_data_path = GpuDataPath::kAuto; });
  part_hosts(4);
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> tensor(job.device(rank), Ints(1000, 0));
    for (int round = 1; round <= 3; ++round) {
      tensor.fill(job.stream(rank), round * (rank + 1));
      job.run(rank, job.of(rank, "t", tensor, tensor));
      EXPECT_EQ(tensor.values(job.stream(rank)), Ints(1000, 10 * round));
    }
    EXPECT_FALSE(job[rank].transports().empty());
  });
  EXPECT_EQ(FakeNccl::calls("ncclCommInitRankConfig"), 8) << "once across hosts in vain, once within them";
  EXPECT_EQ(FakeNccl::calls("ncclReduceScatter"), 12);
  EXPECT_EQ(FakeNccl::calls("ncclAllReduce"), 0);
}

TEST(Hierarchy, AcrossHostsGoesByNcclAloneWhereItConnects) {
  HierarchyJob job(kTwoByTwo, [](RuntimeOptions& options) { options.gpu_data_path = GpuDataPath::kAuto; });
  run_steps(job, 3, 2);
  EXPECT_EQ(FakeNccl::calls("ncclReduceScatter"), 0);
  EXPECT_EQ(NcclJob::copies(), 0);
}

TEST(Hierarchy, StepsThatRepeatThemselvesFollowAScheduleWithoutAControlMessage) {
  HierarchyJob job(kTwoByTwo, patient);
  run_steps(job, 12, 15);
  const std::uint64_t messages = job[0].counters().control_messages;
  const int groups = FakeNccl::calls("ncclGroupStart");
  run_steps(job, 12, 30);
  EXPECT_LT(job[0].counters().control_messages - messages, 30U * 4) << "messages for every step";
  EXPECT_LE(FakeNccl::calls("ncclGroupStart") - groups, 4 * 30 * 12 * 2) << "two calls for a tensor at most";
}

TEST(Hierarchy, SeveralStreamsOfAGpuShareTheBatches) {
  HierarchyJob job(kTwoByTwo, [](RuntimeOptions& options) { options.knobs.nccl_streams = 3; });
  run_steps(job, 7, 6);
  EXPECT_EQ(FakeNccl::calls("ncclCommInitRankConfig"), 12);
}

TEST(Hierarchy, OnlySlicesCrossTheBusAndTheCallerIsNotBlocked) {
  HierarchyJob job(kTwoByTwo);
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> tensor(job.device(rank), Ints(8, 0));
    FakeGpu::hold(job.stream(rank));
    tensor.fill(job.stream(rank), 4);
    const Ticket ticket = job[rank].submit(job.of(rank, "t", tensor, tensor));
    EXPECT_FALSE(job[rank].wait(ticket, Deadline::after(20'000'000))) << "its slice is not on the host";
    FakeGpu::release(job.stream(rank));
    job.join(rank, ticket);
    job[rank].release(ticket);
    EXPECT_EQ(tensor.values(job.stream(rank)), Ints(8, 16));
  });
  EXPECT_EQ(NcclJob::copies(), 8) << "a slice to the host and back on each rank";
}

TEST(Hierarchy, AProcessSetGoesAsItLiesOnHosts) {
  HierarchyJob job({"a", "a", "a", "b", "b", "b"});
  job.on_every_rank([&](int rank) {
    const auto add = [&](std::vector<int> members) {
      const Ticket added = job[rank].add_process_set(members);
      if (!job[rank].wait(added, Deadline::after(20'000'000'000))) throw Timeout("the set was not added");
      const auto set = static_cast<std::uint32_t>(job[rank].operation(added)->number);
      job[rank].release(added);
      return set;
    };
    const std::uint32_t levels = add({0, 2, 3, 4});
    const std::uint32_t within = add({0, 1});
    const std::uint32_t unequal = add({0, 1, 5});
    const std::uint32_t apart = add({1, 4});
    DeviceArray<std::int32_t> tensor(job.device(rank), Ints(9, rank + 1));
    const auto run = [&](std::uint32_t set, std::vector<int> members, const char* name) {
      if (std::find(members.begin(), members.end(), rank) == members.end()) return;
      Submission submission = job.of(rank, name, tensor, tensor);
      submission.request.process_set = set;
      tensor.fill(job.stream(rank), rank + 1);
      job.run(rank, std::move(submission));
      std::int32_t sum = 0;
      for (const int member : members) sum += member + 1;
      EXPECT_EQ(tensor.values(job.stream(rank)), Ints(9, sum)) << name;
    };
    for (int round = 0; round < 3; ++round) {
      run(levels, {0, 2, 3, 4}, "levels");
      run(within, {0, 1}, "within");
      run(unequal, {0, 1, 5}, "unequal");
      run(apart, {1, 4}, "apart");
      run(0, {0, 1, 2, 3, 4, 5}, "all");
    }
    testing_support::finish(job[rank], job[rank].remove_process_set(levels));
    run(0, {0, 1, 2, 3, 4, 5}, "all");
  });
  EXPECT_EQ(FakeNccl::calls("ncclCommInitRankConfig"), 4 + 2 + 6);
  EXPECT_EQ(FakeNccl::calls("ncclReduceScatter"), 3 * (4 + 6) + 6);
  EXPECT_EQ(FakeNccl::calls("ncclAllReduce"), 3 * (2 + 4)) << "within a host, and what two ranks leave of nine elements"
                                                           << " - three ranks leave none";
}

TEST(Hierarchy, UnequalHostsStage) {
  HierarchyJob job({"a", "a", "b"});
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> tensor(job.device(rank), Ints(100, rank + 1));
    job.run(rank, job.of(rank, "t", tensor, tensor));
    EXPECT_EQ(tensor.values(job.stream(rank)), Ints(100, 6));
  });
  EXPECT_EQ(FakeNccl::calls("ncclCommInitRankConfig"), 0);
}

TEST(Hierarchy, WhatItCannotCarryIsStaged) {
  HierarchyJob job(kTwoByTwo);
  job.on_every_rank([&](int rank) {
    DeviceArray<float> floats(job.device(rank), std::vector<float>(10, 1.5F));
    Submission cast = job.of(rank, "cast", floats, floats);
    cast.request.wire = DType::kBfloat16;
    job.run(rank, std::move(cast));
    EXPECT_EQ(floats.values(job.stream(rank)), std::vector<float>(10, 6.0F));
    DeviceArray<std::int32_t> ints(job.device(rank), Ints(10, rank));
    Submission broadcast = job.of(rank, "broadcast", ints, ints);
    broadcast.request.kind = CollectiveKind::kBroadcast;
    broadcast.request.root = 3;
    job.run(rank, std::move(broadcast));
    EXPECT_EQ(ints.values(job.stream(rank)), Ints(10, 3));
    Submission scaled = job.of(rank, "scaled", ints, ints);
    scaled.request.prescale = 2.0;
    job.run(rank, std::move(scaled));
    EXPECT_EQ(ints.values(job.stream(rank)), Ints(10, 24));
  });
  EXPECT_EQ(FakeNccl::calls("ncclCommInitRankConfig"), 0);
}

TEST(Hierarchy, AGroupRunsTogether) {
  HierarchyJob job(kTwoByTwo);
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> first(job.device(rank), Ints(10, rank + 1));
    DeviceArray<std::int32_t> second(job.device(rank), Ints(21, rank + 2));
    std::vector<Ticket> tickets;
    for (const auto& [name, array] : {std::pair("a", &first), std::pair("b", &second)}) {
      Submission submission = job.of(rank, name, *array, *array);
      submission.request.group = "pair";
      submission.request.group_size = 2;
      tickets.push_back(job[rank].submit(std::move(submission)));
    }
    for (const Ticket ticket : tickets) {
      job.join(rank, ticket);
      job[rank].release(ticket);
    }
    EXPECT_EQ(first.values(job.stream(rank)), Ints(10, 10));
    EXPECT_EQ(second.values(job.stream(rank)), Ints(21, 14));
  });
  EXPECT_EQ(FakeNccl::calls("ncclReduceScatter"), 8);
}

TEST(Hierarchy, AllreducesGoOnWhenARankHasJoined) {
  HierarchyJob job(kTwoByTwo);
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> tensor(job.device(rank), Ints(10, rank + 1));
    job.run(rank, job.of(rank, "t", tensor, tensor));
    if (rank != 2) {
      job.run(rank, job.of(rank, "t", tensor, tensor));
      EXPECT_EQ(tensor.values(job.stream(rank)), Ints(10, 30));
    }
    testing_support::finish(job[rank], job[rank].join("join"));
    const int before = FakeNccl::calls("ncclReduceScatter");
    job.run(rank, job.of(rank, "t", tensor, tensor));
    EXPECT_EQ(tensor.values(job.stream(rank)), Ints(10, 100));
    EXPECT_GT(FakeNccl::calls("ncclReduceScatter"), before);
  });
}

TEST(Hierarchy, RanksOfAHostThatShareAGpuStageOrSayWhy) {
  for (const GpuDataPath setting : {GpuDataPath::kAuto, GpuDataPath::kNcclHost}) {
    HierarchyJob job({"a", "b", "a", "b"}, [&](RuntimeOptions& options) { options.gpu_data_path = setting; }, 2);
    job.on_every_rank([&](int rank) {
      DeviceArray<std::int32_t> tensor(job.device(rank), Ints(10, rank + 1));
      if (setting == GpuDataPath::kAuto) {
        job.run(rank, job.of(rank, "t", tensor, tensor));
        EXPECT_EQ(tensor.values(job.stream(rank)), Ints(10, 10));
      } else {
        const std::string message = message_of<DeviceError>([&] { job.run(rank, job.of(rank, "t", tensor, tensor)); });
        EXPECT_EQ(message.find("rank 0 and rank 2 share the GPU 0000:01:00.0 of a, which NCCL does not support"), 0U)
            << message;
        EXPECT_NE(message.find("RINGTUNE_GPU_DATA_PATH=nccl-host"), std::string::npos) << message;
      }
    });
    EXPECT_EQ(FakeNccl::calls("ncclCommInitRankConfig"), 0);
  }
}

}  // namespace
}  // namespace ringtune
