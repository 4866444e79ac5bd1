// Tensors from GPU to GPU through whole runtimes, on the fake NCCL: results, order, and data paths.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "device/elements.h"
#include "nccl_job.h"
#include "thrown.h"

namespace ringtune {
namespace {

using testing_support::DeviceArray;
using testing_support::FakeNccl;
using testing_support::message_of;
using testing_support::NcclJob;
using testing_support::RankBytes;

using Ints = std::vector<std::int32_t>;
using Floats = std::vector<float>;

TEST(Nccl, RanksThatShareAGpuStageAndSaySoOnce) {
  NcclJob job(2, 1);
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> tensor(job.device(rank), Ints(100, rank + 1));
    for (int i = 0; i < 5; ++i) {
      tensor.fill(job.stream(rank), rank + 1);
      job.run(rank, job.of(rank, "t" + std::to_string(i), tensor, tensor));
      EXPECT_EQ(tensor.values(job.stream(rank)), Ints(100, 3));
    }
  });
  EXPECT_EQ(FakeNccl::calls("ncclCommInitRankConfig"), 0);
  EXPECT_EQ(NcclJob::copies(), 20);
}

TEST(Nccl, RanksWithoutNcclMakeTheOthersStageLargeTensorsInPartsToo) {
  NcclJob job(3, [](RuntimeOptions& options) {
    if (options.rank == 1) options.nccl_libraries.clear();
  });
  const std::size_t count = (std::size_t{8} << 20) / 4 * 2 + 10;
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> tensor(job.device(rank), Ints(count, 0));
    for (int round = 1; round <= 3; ++round) {
      tensor.fill(job.stream(rank), round * (rank + 1));
      job.run(rank, job.of(rank, "t", tensor, tensor));
      EXPECT_EQ(tensor.values(job.stream(rank)), Ints(count, 6 * round));
    }
  });
  EXPECT_EQ(FakeNccl::calls("ncclAllReduce"), 0);
}

TEST(Nccl, AGroupWhoseRanksGoDifferentWaysRunsStaged) {
  NcclJob job(2, [](RuntimeOptions& options) {
    if (options.rank == 1) options.gpu_data_path = GpuDataPath::kStaged;
  });
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> first(job.device(rank), Ints(10, rank + 1));
    DeviceArray<std::int32_t> second(job.device(rank), Ints(20, rank + 2));
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
    EXPECT_EQ(first.values(job.stream(rank)), Ints(10, 3));
    EXPECT_EQ(second.values(job.stream(rank)), Ints(20, 5));
  });
}

TEST(Nccl, NothingOfARankAloneComesToTheHost) {
  NcclJob job(1);
  DeviceArray<float> tensor(job.device(0), Floats(1000, 0.0F));
  DeviceArray<float> result(job.device(0), Floats(1000, 0.0F));
  for (int round = 1; round <= 4; ++round) {
    tensor.fill(job.stream(0), static_cast<float>(round));
    Submission submission = job.of(0, "t", tensor, result);
    submission.request.op = ReduceOp::kAverage;
    submission.request.prescale = 3.0;
    job.run(0, std::move(submission));
    EXPECT_EQ(result.values(job.stream(0)), Floats(1000, 3.0F * static_cast<float>(round)));
    for (const CollectiveKind kind : {CollectiveKind::kBroadcast, CollectiveKind::kReducescatter}) {
      tensor.fill(job.stream(0), static_cast<float>(round) + 0.5F);
      Submission other = job.of(0, "other " + std::to_string(static_cast<int>(kind)), tensor, result);
      other.request.kind = kind;
      job.run(0, std::move(other));
      EXPECT_EQ(result.values(job.stream(0)), Floats(1000, static_cast<float>(round) + 0.5F));
    }
  }
  EXPECT_EQ(NcclJob::copies(), 0);
}

TEST(Nccl, ARankAloneWithoutItIsStaged) {
  NcclJob job(1, [](RuntimeOptions& options) { options.nccl_libraries.clear(); });
  DeviceArray<std::int32_t> tensor(job.device(0), Ints(10, 3));
  Submission twice = job.of(0, "t", tensor, tensor);
  twice.request.prescale = 2.0;
  job.run(0, std::move(twice));
  EXPECT_EQ(tensor.values(job.stream(0)), Ints(10, 6));
  EXPECT_EQ(NcclJob::copies(), 2);
}

TEST(Nccl, WhatItCannotCarryIsStaged) {
  NcclJob job(2);
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> ints(job.device(rank), Ints(10, 2 * rank + 3));
    Submission average = job.of(rank, "ints", ints, ints);
    average.request.op = ReduceOp::kAverage;
    job.run(rank, std::move(average));
    EXPECT_EQ(ints.values(job.stream(rank)), Ints(10, 4));
    DeviceArray<float> floats(job.device(rank), Floats(10, 1.5F));
    Submission cast = job.of(rank, "floats", floats, floats);
    cast.request.wire = DType::kBfloat16;
    job.run(rank, std::move(cast));
    EXPECT_EQ(floats.values(job.stream(rank)), Floats(10, 3.0F));
    job.run(rank, job.of(rank, "nccl", floats, floats));
    EXPECT_EQ(floats.values(job.stream(rank)), Floats(10, 6.0F));
  });
  EXPECT_EQ(FakeNccl::calls("ncclAllReduce"), 2);
}

TEST(Nccl, WhereItIsAskedForAndCannotBeTheOperationSaysWhy) {
  NcclJob job(2, 1, [](RuntimeOptions& options) { options.gpu_data_path = GpuDataPath::kNccl; });
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> tensor(job.device(rank), Ints(10, 1));
    const Ticket ticket = job[rank].submit(job.of(rank, "t", tensor, tensor));
    const std::string message = message_of<DeviceError>([&] { job.join(rank, ticket); });
    EXPECT_EQ(message.find("rank 0 and rank 1 share the GPU 0000:01:00.0 of localhost, which NCCL does not support"),
              0U)
        << message;
    EXPECT_NE(message.find("RINGTUNE_GPU_DATA_PATH=nccl"), std::string::npos) << message;
    job[rank].release(ticket);
  });
}

TEST(Nccl, WhereItIsAskedForAndMissingTheSubmissionSaysWhy) {
  NcclJob job(2, [](RuntimeOptions& options) {
    options.gpu_data_path = GpuDataPath::kNccl;
    options.nccl_libraries = {"/no/such/libnccl.so.2"};
  });
  DeviceArray<std::int32_t> tensor(job.device(0), Ints(10, 1));
  const std::string message = message_of<DeviceError>([&] { (void)job[0].submit(job.of(0, "t", tensor, tensor)); });
  EXPECT_EQ(
      message.find("tensor 't' cannot go by NCCL, which RINGTUNE_GPU_DATA_PATH=nccl asks for: NCCL cannot be opened "
                   "(/no/such/libnccl.so.2"),
      0U)
      << message;
}

/// A dtype and an operation, against float64 on the host.
struct NcclCase {
  DType dtype;
  ReduceOp op;
  double prescale = 1.0;
  double postscale = 1.0;
};
void PrintTo(const NcclCase& one, std::ostream* out) { *out << name_of(one.dtype) << " " << name_of(one.op); }

class NcclReduction : public testing::TestWithParam<NcclCase> {};

std::vector<std::byte> encoded(DType dtype, const std::vector<double>& values) {
  std::vector<std::byte> bytes(values.size() * size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) elements::from_double(dtype, &bytes[i * size_of(dtype)], values[i]);
  return bytes;
}

double value_of(int rank, std::size_t i) { return static_cast<double>((static_cast<int>(i) + 3 * rank) % 5 + 1); }

/// The reduction of element i over three ranks.
double expected_of(const NcclCase& one, std::size_t i) {
  double result = value_of(0, i);
  for (int rank = 1; rank < 3; ++rank) {
    const double next = value_of(rank, i);
    if (one.op == ReduceOp::kMin) {
      result = std::min(result, next);
    } else if (one.op == ReduceOp::kMax) {
      result = std::max(result, next);
    } else {
      result = one.op == ReduceOp::kProduct ? result * next : result + next;
    }
  }
  const double scaled = result * one.prescale * one.postscale;
  return one.op == ReduceOp::kAverage ? scaled / 3 : scaled;
}

void expect_near(DType dtype, const std::vector<std::byte>& bytes, const NcclCase& one, std::size_t first) {
  const double relative = dtype == DType::kBfloat16 ? 0.02 : dtype == DType::kFloat16 ? 0.002 : 1e-6;
  for (std::size_t i = 0; i * size_of(dtype) < bytes.size(); ++i) {
    const double want = expected_of(one, first + i);
    const double tolerance = is_floating(dtype) ? relative * std::fabs(want) : 0.0;
    ASSERT_NEAR(elements::as_double(dtype, &bytes[i * size_of(dtype)]), want, tolerance) << "element " << first + i;
  }
}

TEST_P(NcclReduction, IsThatOfFloat64) {
  const NcclCase one = GetParam();
  constexpr std::size_t kCount = 77;
  NcclJob job(3);
  job.on_every_rank([&](int rank) {
    std::vector<double> values;
    for (std::size_t i = 0; i < kCount; ++i) values.push_back(value_of(rank, i));
    const std::vector<std::byte> bytes = encoded(one.dtype, values);
    RankBytes input(job.device(rank), bytes);
    RankBytes output(job.device(rank), std::vector<std::byte>(bytes.size()));
    Submission submission = job.of(rank, "t", input.data(), output.data(), one.dtype, {kCount});
    submission.request.op = one.op;
    submission.request.prescale = one.prescale;
    submission.request.postscale = one.postscale;
    job.run(rank, submission);
    expect_near(one.dtype, output.values(job.stream(rank)), one, 0);
    // The same with every rank's rows alone: 11 rows of 7 elements are 4, 4 and 3.
    submission.request.kind = CollectiveKind::kReducescatter;
    submission.request.name = "rows";
    submission.request.shape = {11, 7};
    job.run(rank, submission);
    const std::size_t rows = rank < 2 ? 4 : 3;
    std::vector<std::byte> own = output.values(job.stream(rank));
    own.resize(rows * 7 * size_of(one.dtype));
    expect_near(one.dtype, own, one, static_cast<std::size_t>(rank) * 4 * 7);
  });
  EXPECT_EQ(NcclJob::copies(), 0);
}

INSTANTIATE_TEST_SUITE_P(
    All, NcclReduction,
    testing::Values(NcclCase{DType::kUint8, ReduceOp::kSum}, NcclCase{DType::kInt8, ReduceOp::kMax},
                    NcclCase{DType::kInt32, ReduceOp::kSum}, NcclCase{DType::kInt32, ReduceOp::kProduct},
                    NcclCase{DType::kInt64, ReduceOp::kMin}, NcclCase{DType::kFloat16, ReduceOp::kSum},
                    NcclCase{DType::kFloat16, ReduceOp::kAverage}, NcclCase{DType::kFloat16, ReduceOp::kSum, 0.25, 2.0},
                    NcclCase{DType::kBfloat16, ReduceOp::kSum},
                    NcclCase{DType::kBfloat16, ReduceOp::kAverage, 0.5, 1.0}, NcclCase{DType::kFloat32, ReduceOp::kSum},
                    NcclCase{DType::kFloat32, ReduceOp::kAverage},
                    NcclCase{DType::kFloat32, ReduceOp::kAverage, 0.1, 3.0}, NcclCase{DType::kFloat32, ReduceOp::kMin},
                    NcclCase{DType::kFloat32, ReduceOp::kMax}, NcclCase{DType::kFloat32, ReduceOp::kProduct},
                    NcclCase{DType::kFloat64, ReduceOp::kSum, 1.5, 1.5},
                    NcclCase{DType::kFloat64, ReduceOp::kAverage}));

TEST(Nccl, RowsOfEqualPartsGoInOneCall) {
  NcclJob job(2);
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> input(job.device(rank), {1, 2, 3, 4});
    DeviceArray<std::int32_t> output(job.device(rank), {0, 0});
    Submission submission = job.of(rank, "t", input, output);
    submission.request.kind = CollectiveKind::kReducescatter;
    job.run(rank, std::move(submission));
    EXPECT_EQ(output.values(job.stream(rank)), rank == 0 ? Ints({2, 4}) : Ints({6, 8}));
  });
  EXPECT_EQ(FakeNccl::calls("ncclReduceScatter"), 2);
  EXPECT_EQ(FakeNccl::calls("ncclReduce"), 0);
}

}  // namespace
}  // namespace ringtune
