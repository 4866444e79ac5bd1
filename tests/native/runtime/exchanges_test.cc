// Alltoall, reducescatter and Adasum through whole runtimes.
#include <gtest/gtest.h>

#include "base/error.h"
#include "job.h"

namespace ringtune {
namespace {

using testing_support::finish;
using testing_support::Job;
using testing_support::numbers_in;
using testing_support::submission_of;

TEST(RuntimeExchanges, AlltoallWithSplitsOfEachRanksOwn) {
  Job job(3);
  for (int round = 0; round < 2; ++round) {
    job.on_every_rank([&](int rank) {
      // Rank r sends 0, 1, 2 rows to ranks 0, 1, 2, and keeps a row that is not sent.
      std::vector<std::int32_t> input = {10 * rank + 1, 10 * rank + 2, 10 * rank + 3, -1};
      Submission submission = submission_of(CollectiveKind::kAlltoall, input, nullptr);
      submission.splits = {0, 1, 2};
      const Ticket ticket = job[rank].submit(std::move(submission));
      ASSERT_TRUE(job[rank].wait(ticket, Deadline::after(10'000'000'000)));
      const OperationPtr operation = job[rank].operation(ticket);
      EXPECT_EQ(operation->splits, (std::vector<std::int64_t>(3, rank)));
      const std::vector<std::vector<std::int32_t>> expected = {{}, {1, 11, 21}, {2, 3, 12, 13, 22, 23}};
      EXPECT_EQ(numbers_in(operation->gathered), expected[static_cast<std::size_t>(rank)]);
      EXPECT_EQ(operation->gathered_shape, (std::vector<std::int64_t>{3 * rank}));
      job[rank].release(ticket);
    });
  }
}

TEST(RuntimeExchanges, ReducescatterScalesAndCutsUnevenly) {
  Job job(3);
  job.on_every_rank([&](int rank) {
    std::vector<std::int32_t> input = {1, 2, 3, 4};
    std::vector<std::int32_t> output(rank == 0 ? 2 : 1);
    Submission submission = submission_of(CollectiveKind::kReducescatter, input, output.data());
    submission.request.prescale = 2.0;
    finish(job[rank], job[rank].submit(std::move(submission)));
    const std::vector<std::vector<std::int32_t>> expected = {{6, 12}, {18}, {24}};
    EXPECT_EQ(output, expected[static_cast<std::size_t>(rank)]);
  });
}

TEST(RuntimeExchanges, AdasumOfParallelGradientsIsTheirAverage) {
  Job job(4);
  job.on_every_rank([&](int rank) {
    std::vector<float> data = {1, 2, 3};
    Submission submission = testing_support::allreduce_of("g", data, ReduceOp::kAdasum);
    submission.request.postscale = 2.0;
    finish(job[rank], job[rank].submit(std::move(submission)));
    EXPECT_EQ(data, (std::vector<float>{2, 4, 6}));
  });
}

class RuntimeRefusals : public ::testing::TestWithParam<std::pair<const char*, Submission (*)()>> {};

Submission refused(CollectiveKind kind, std::vector<std::int64_t> shape, std::vector<std::int64_t> splits = {}) {
  static std::int32_t memory[16];
  Submission submission{{}, memory, memory, std::move(splits)};
  submission.request.name = "t";
  submission.request.kind = kind;
  submission.request.dtype = DType::kInt32;
  submission.request.shape = std::move(shape);
  return submission;
}

TEST_P(RuntimeRefusals, AreMadeWhenItIsSubmitted) {
  Job job(3);
  EXPECT_THROW((void)job[1].submit(GetParam().second()), InvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(
    Arguments, RuntimeRefusals,
    ::testing::Values(std::pair{"RowsThatDoNotDivide", +[] { return refused(CollectiveKind::kAlltoall, {4}); }},
                      std::pair{"AScalarAlltoall", +[] { return refused(CollectiveKind::kAlltoall, {}); }},
                      std::pair{"TooFewSplits", +[] { return refused(CollectiveKind::kAlltoall, {4}, {1, 1}); }},
                      std::pair{"TooManyRows", +[] { return refused(CollectiveKind::kAlltoall, {4}, {1, 2, 2}); }},
                      std::pair{"NegativeSplits", +[] { return refused(CollectiveKind::kAlltoall, {4}, {1, -1, 1}); }},
                      std::pair{"AScalarReducescatter", +[] { return refused(CollectiveKind::kReducescatter, {}); }},
                      std::pair{"AdasumOfIntegers",
                                +[] {
                                  Submission submission = refused(CollectiveKind::kAllreduce, {4});
                                  submission.request.op = ReduceOp::kAdasum;
                                  return submission;
                                }},
                      std::pair{"AdasumOfThreeRanks",
                                +[] {
                                  Submission submission = refused(CollectiveKind::kAllreduce, {4});
                                  submission.request.dtype = DType::kFloat32;
                                  submission.request.op = ReduceOp::kAdasum;
                                  return submission;
                                }}),
    [](const auto& it) { return it.param.first; });

}  // namespace
}  // namespace ringtune
