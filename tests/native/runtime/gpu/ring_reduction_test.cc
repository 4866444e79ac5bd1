// What the ring between GPUs computes, against the same operation on host memory: the same bits.
#include <gtest/gtest.h>

#include <optional>

#include "device/elements.h"
#include "ring_job.h"

namespace ringtune {
namespace {

using testing_support::RankBytes;
using testing_support::RingJob;

struct RingReductionCase {
  DType dtype;
  ReduceOp op;
  double prescale = 1.0;
  double postscale = 1.0;
  std::optional<DType> wire = {};
};
void PrintTo(const RingReductionCase& one, std::ostream* out) { *out << name_of(one.dtype) << " " << name_of(one.op); }

class RingReduction : public testing::TestWithParam<RingReductionCase> {};

/// Sums and products of them are exact in every dtype.
std::vector<std::byte> values_of(DType dtype, int rank, std::size_t count) {
  std::vector<std::byte> bytes(count * size_of(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    const int value =
        dtype == DType::kBool ? (static_cast<int>(i) + rank) % 2 : (static_cast<int>(i) + 3 * rank) % 5 + 1;
    elements::from_double(dtype, &bytes[i * size_of(dtype)], value);
  }
  return bytes;
}

TEST_P(RingReduction, HasTheBitsOfTheHost) {
  const RingReductionCase one = GetParam();
  constexpr std::size_t kCount = 7 * 11 * 50;
  RingJob job(3);
  job.on_every_rank([&](int rank) {
    const std::vector<std::byte> bytes = values_of(one.dtype, rank, kCount);
    RankBytes input(job.device(rank), bytes);
    RankBytes output(job.device(rank), std::vector<std::byte>(bytes.size()));
    for (const CollectiveKind kind : {CollectiveKind::kAllreduce, CollectiveKind::kReducescatter}) {
      if (kind == CollectiveKind::kReducescatter && one.wire) continue;
      Submission submission = job.of(rank, "gpu", input.data(), output.data(), one.dtype, {7 * 50, 11});
      submission.request.kind = kind;
      submission.request.op = one.op;
      submission.request.prescale = one.prescale;
      submission.request.postscale = one.postscale;
      submission.request.wire = one.wire;
      job.run(rank, submission);
      std::vector<std::byte> host(bytes.size());
      submission.device.reset();
      submission.request.name = "host";
      submission.input = bytes.data();
      submission.output = host.data();
      testing_support::finish(job[rank], job[rank].submit(submission));
      std::vector<std::byte> seen = output.values(job.stream(rank));
      if (kind == CollectiveKind::kReducescatter) {
        const std::size_t rows = rank < 2 ? 117 : 116;
        seen.resize(rows * 11 * size_of(one.dtype));
        host.resize(seen.size());
      }
      EXPECT_EQ(seen, host);
    }
  });
  EXPECT_EQ(RingJob::staged(), 0);
}

INSTANTIATE_TEST_SUITE_P(
    All, RingReduction,
    testing::Values(
        RingReductionCase{DType::kUint8, ReduceOp::kSum}, RingReductionCase{DType::kInt8, ReduceOp::kMax},
        RingReductionCase{DType::kInt16, ReduceOp::kSum}, RingReductionCase{DType::kInt32, ReduceOp::kAverage},
        RingReductionCase{DType::kInt32, ReduceOp::kProduct}, RingReductionCase{DType::kInt64, ReduceOp::kMin},
        RingReductionCase{DType::kInt64, ReduceOp::kSum, 3.0, 0.5}, RingReductionCase{DType::kBool, ReduceOp::kSum},
        RingReductionCase{DType::kBool, ReduceOp::kMin}, RingReductionCase{DType::kFloat16, ReduceOp::kSum},
        RingReductionCase{DType::kFloat16, ReduceOp::kAverage},
        RingReductionCase{DType::kBfloat16, ReduceOp::kSum, 0.25, 2.0},
        RingReductionCase{DType::kBfloat16, ReduceOp::kAverage, 0.5, 1.0},
        RingReductionCase{DType::kFloat32, ReduceOp::kSum}, RingReductionCase{DType::kFloat32, ReduceOp::kAverage},
        RingReductionCase{DType::kFloat32, ReduceOp::kSum, 0.5, 3.0},
        RingReductionCase{DType::kFloat32, ReduceOp::kMin}, RingReductionCase{DType::kFloat32, ReduceOp::kMax},
        RingReductionCase{DType::kFloat32, ReduceOp::kProduct}, RingReductionCase{DType::kFloat64, ReduceOp::kAverage},
        RingReductionCase{DType::kFloat32, ReduceOp::kSum, 1.0, 1.0, DType::kBfloat16},
        RingReductionCase{DType::kFloat32, ReduceOp::kAverage, 0.5, 1.0, DType::kFloat16},
        RingReductionCase{DType::kFloat64, ReduceOp::kSum, 1.0, 1.0, DType::kFloat16}));

}  // namespace
}  // namespace ringtune
