// What batches of several allreduces by NCCL compute when they are packed, against the same operations on host memory:
// the same bits.
#include <gtest/gtest.h>

#include <memory>

#include "device/elements.h"
#include "packed_job.h"

namespace ringtune {
namespace {

using testing_support::FakeNccl;
using testing_support::PackedJob;
using testing_support::RankBytes;
using testing_support::RingJob;
using testing_support::run_group;

struct PackedReductionCase {
  DType dtype;
  ReduceOp op;
  double prescale = 1.0;
  double postscale = 1.0;
};
void PrintTo(const PackedReductionCase& one, std::ostream* out) {
  *out << name_of(one.dtype) << " " << name_of(one.op);
}

class NcclPackedReduction : public testing::TestWithParam<PackedReductionCase> {};

TEST_P(NcclPackedReduction, HasTheBitsOfTheHost) {
  const PackedReductionCase one = GetParam();
  PackedJob job(3);
  job.on_every_rank([&](int rank) {
    const std::size_t counts[] = {1, 333, 64, 2049};
    std::vector<std::unique_ptr<RankBytes>> inputs;
    std::vector<std::unique_ptr<RankBytes>> outputs;
    std::vector<std::vector<std::byte>> bytes;
    std::vector<Submission> members;
    for (std::size_t t = 0; t < std::size(counts); ++t) {
      const std::size_t item = size_of(one.dtype);
      bytes.emplace_back(counts[t] * item);
      for (std::size_t i = 0; i < counts[t]; ++i) {  // sums and products are exact in every dtype
        elements::from_double(one.dtype, &bytes[t][i * item],
                              static_cast<int>(i + t + 3 * static_cast<unsigned>(rank)) % 5 + 1);
      }
      inputs.push_back(std::make_unique<RankBytes>(job.device(rank), bytes[t]));
      outputs.push_back(std::make_unique<RankBytes>(job.device(rank), std::vector<std::byte>(bytes[t].size())));
      Submission submission = job.of(rank, "gpu" + std::to_string(t), inputs[t]->data(), outputs[t]->data(), one.dtype,
                                     {static_cast<std::int64_t>(counts[t])});
      submission.request.op = one.op;
      submission.request.prescale = one.prescale;
      submission.request.postscale = t == 2 ? 1.0 : one.postscale;  // each has a factor of its own
      members.push_back(submission);
    }
    run_group(job, rank, members);
    for (std::size_t t = 0; t < std::size(counts); ++t) {
      std::vector<std::byte> host(bytes[t].size());
      Submission submission = members[t];
      submission.device.reset();
      submission.request.name = "host" + std::to_string(t);
      submission.input = bytes[t].data();
      submission.output = host.data();
      testing_support::finish(job[rank], job[rank].submit(submission));
      EXPECT_EQ(outputs[t]->values(job.stream(rank)), host) << "tensor " << t;
      EXPECT_EQ(inputs[t]->values(job.stream(rank)), bytes[t]) << "what went in stays";
    }
  });
  EXPECT_EQ(RingJob::staged(), 0);
  EXPECT_EQ(FakeNccl::calls("ncclAllReduce"), 3);
}

INSTANTIATE_TEST_SUITE_P(All, NcclPackedReduction,
                         testing::Values(PackedReductionCase{DType::kUint8, ReduceOp::kSum},
                                         PackedReductionCase{DType::kInt8, ReduceOp::kMax},
                                         PackedReductionCase{DType::kInt32, ReduceOp::kProduct},
                                         PackedReductionCase{DType::kInt64, ReduceOp::kMin},
                                         PackedReductionCase{DType::kFloat16, ReduceOp::kSum},
                                         PackedReductionCase{DType::kFloat16, ReduceOp::kAverage},
                                         PackedReductionCase{DType::kBfloat16, ReduceOp::kSum, 0.25, 2.0},
                                         PackedReductionCase{DType::kBfloat16, ReduceOp::kAverage, 0.5, 1.0},
                                         PackedReductionCase{DType::kFloat32, ReduceOp::kSum},
                                         PackedReductionCase{DType::kFloat32, ReduceOp::kAverage},
                                         PackedReductionCase{DType::kFloat32, ReduceOp::kSum, 0.5, 3.0},
                                         PackedReductionCase{DType::kFloat32, ReduceOp::kMin},
                                         PackedReductionCase{DType::kFloat32, ReduceOp::kMax},
                                         PackedReductionCase{DType::kFloat32, ReduceOp::kProduct},
                                         PackedReductionCase{DType::kFloat64, ReduceOp::kAverage},
                                         PackedReductionCase{DType::kFloat64, ReduceOp::kSum, 1.0, 1.0 / 3}));

}  // namespace
}  // namespace ringtune
