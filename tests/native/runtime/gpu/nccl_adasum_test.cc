// Adasum of tensors on GPUs goes by NCCL where all members have the kernels: the tree of the paper (S. Maleki et al.,
// MLSys 2021), with the same bits on all members and nothing on the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "device/elements.h"
#include "device_part.h"
#include "packed_job.h"

namespace ringtune {
namespace {

using testing_support::DeviceArray;
using testing_support::FakeGpu;
using testing_support::FakeNccl;
using testing_support::PackedJob;
using testing_support::patient;
using testing_support::RankBytes;
using testing_support::RingJob;

using Floats = std::vector<float>;
using Vector = std::vector<double>;

Submission adasum(Submission submission, double prescale = 1.0, double postscale = 1.0) {
  submission.request.op = ReduceOp::kAdasum;
  submission.request.prescale = prescale;
  submission.request.postscale = postscale;
  return submission;
}

Vector member_vector(int rank, std::size_t count) {
  Vector values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = std::sin(static_cast<double>(i) + rank) + 0.3 * rank;
  return values;
}

Vector combined(const Vector& a, const Vector& b) {
  const double ab = std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  const double aa = std::inner_product(a.begin(), a.end(), a.begin(), 0.0);
  const double bb = std::inner_product(b.begin(), b.end(), b.begin(), 0.0);
  Vector sum(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) sum[i] = (1 - ab / (2 * aa)) * a[i] + (1 - ab / (2 * bb)) * b[i];
  return sum;
}

/// Neighbours first, as the paper says.
Vector paper_tree(int ranks, std::size_t count) {
  std::vector<Vector> tree;
  for (int rank = 0; rank < ranks; ++rank) tree.push_back(member_vector(rank, count));
  while (tree.size() > 1) {
    std::vector<Vector> next;
    for (std::size_t i = 0; i < tree.size(); i += 2) next.push_back(combined(tree[i], tree[i + 1]));
    tree = std::move(next);
  }
  return tree.front();
}

std::vector<std::byte> bytes_of(DType dtype, const Vector& values) {
  std::vector<std::byte> bytes(values.size() * size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) elements::from_double(dtype, &bytes[i * size_of(dtype)], values[i]);
  return bytes;
}

struct AdasumCase {
  DType dtype;
  int ranks;
  double error;  // of a result, which is about 1
};
void PrintTo(const AdasumCase& one, std::ostream* out) {
  *out << name_of(one.dtype) << " on " << one.ranks << " ranks";
}

class NcclAdasum : public ::testing::TestWithParam<AdasumCase> {};

TEST_P(NcclAdasum, IsThePaperTreeAndBitEqualOnAllMembers) {
  const AdasumCase one = GetParam();
  PackedJob job(one.ranks);
  // Tensors that go as a whole, one of them with fewer elements than members, and such as go in halves, odd ones too.
  for (const std::size_t count : {1, 3, 1000, 40'000, 70'001}) {
    std::vector<std::vector<std::byte>> results(static_cast<std::size_t>(one.ranks));
    job.on_every_rank([&](int rank) {
      const std::vector<std::byte> own = bytes_of(one.dtype, member_vector(rank, count));
      RankBytes input(job.device(rank), own);
      RankBytes output(job.device(rank), std::vector<std::byte>(own.size()));
      job.run(rank, adasum(job.of(rank, "t" + std::to_string(count), input.data(), output.data(), one.dtype,
                                  {static_cast<std::int64_t>(count)})));
      results[static_cast<std::size_t>(rank)] = output.values(job.stream(rank));
      EXPECT_EQ(input.values(job.stream(rank)), own) << "what went in stays";
    });
    const Vector expected = paper_tree(one.ranks, count);
    double error = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const double found = elements::as_double(one.dtype, &results[0][i * size_of(one.dtype)]);
      error = std::max(error, std::abs(found - expected[i]));
    }
    EXPECT_LT(error, one.error) << count << " elements";
    for (const std::vector<std::byte>& result : results) EXPECT_TRUE(result == results[0]) << count << " elements";
  }
  EXPECT_EQ(RingJob::staged(), 0);
  EXPECT_EQ(FakeNccl::misuses(), 0);
}

INSTANTIATE_TEST_SUITE_P(All, NcclAdasum,
                         ::testing::Values(AdasumCase{DType::kFloat32, 2, 1e-5}, AdasumCase{DType::kFloat32, 4, 1e-5},
                                           AdasumCase{DType::kFloat32, 8, 2e-5}, AdasumCase{DType::kFloat64, 4, 1e-12},
                                           AdasumCase{DType::kFloat16, 4, 0.02}, AdasumCase{DType::kBfloat16, 4, 0.1}));

TEST(AdasumByNccl, AddsOrthogonalVectorsAndAveragesParallelOnes) {
  PackedJob job(4);
  for (const std::size_t count : {40, 100'000}) {
    job.on_every_rank([&](int rank) {
      Floats own(count, 0.0F);
      for (std::size_t i = static_cast<std::size_t>(rank); i < count; i += 4) own[i] = 3.0F;
      DeviceArray<float> apart(job.device(rank), own);
      DeviceArray<float> alike(job.device(rank), Floats(count, 5.0F));
      DeviceArray<float> zero(job.device(rank), Floats(count, 0.0F));
      const std::string size = std::to_string(count);
      job.run(rank, adasum(job.of(rank, "apart" + size, apart, apart)));
      job.run(rank, adasum(job.of(rank, "alike" + size, alike, alike)));
      job.run(rank, adasum(job.of(rank, "zero" + size, zero, zero)));
      EXPECT_TRUE(apart.values(job.stream(rank)) == Floats(count, 3.0F)) << count;
      EXPECT_TRUE(alike.values(job.stream(rank)) == Floats(count, 5.0F)) << count;
      EXPECT_TRUE(zero.values(job.stream(rank)) == Floats(count, 0.0F)) << count << ": a zero vector is no division";
    });
  }
  EXPECT_EQ(RingJob::staged(), 0);
}

TEST(AdasumByNccl, ScalesBeforeAndAfter) {
  PackedJob job(2);
  for (const std::size_t count : {100, 30'000}) {
    job.on_every_rank([&](int rank) {
      DeviceArray<float> tensor(job.device(rank), Floats(count, 4.0F));
      DeviceArray<float> output(job.device(rank), Floats(count, 0.0F));
      const std::string size = std::to_string(count);
      job.run(rank, adasum(job.of(rank, "apart" + size, tensor, output), 0.5, 3.0));
      EXPECT_TRUE(output.values(job.stream(rank)) == Floats(count, 6.0F)) << count;
      EXPECT_TRUE(tensor.values(job.stream(rank)) == Floats(count, 4.0F)) << count << ": what went in stays";
      job.run(rank, adasum(job.of(rank, "in place" + size, tensor, tensor), 0.25, 7.0));
      EXPECT_TRUE(tensor.values(job.stream(rank)) == Floats(count, 7.0F)) << count;
    });
  }
  EXPECT_EQ(RingJob::staged(), 0);
}

TEST(AdasumByNccl, OfNothingIsNothing) {
  PackedJob job(2);
  job.on_every_rank([&](int rank) {
    DeviceArray<float> none(job.device(rank), {});
    job.run(rank, adasum(job.of(rank, "t", none, none)));
    EXPECT_EQ(none.values(job.stream(rank)), Floats());
  });
}

TEST(AdasumByNccl, WaitsInTheStreamForATensorThatIsNotThereYet) {
  PackedJob job(2);
  job.on_every_rank([&](int rank) {
    DeviceArray<float> tensor(job.device(rank), Floats(50, 0.0F));
    job.run(rank, adasum(job.of(rank, "first", tensor, tensor)));  // all is connected
    FakeGpu::hold(job.stream(rank));
    tensor.fill(job.stream(rank), 2.0F);
    const Ticket ticket = job[rank].submit(adasum(job.of(rank, "t", tensor, tensor)));
    job.join(rank, ticket);  // its stream waits, not this thread
    job[rank].release(ticket);
    FakeGpu::release(job.stream(rank));
    EXPECT_EQ(tensor.values(job.stream(rank)), Floats(50, 2.0F));
  });
}

TEST(AdasumByNccl, FollowsAScheduleBesideAllreduces) {
  PackedJob job(2, patient);
  const auto steps = [&](int count) {
    job.on_every_rank([&](int rank) {
      DeviceArray<float> tensor(job.device(rank), Floats(50, 0.0F));
      DeviceArray<float> sum(job.device(rank), Floats(20, 0.0F));
      for (int step = 0; step < count; ++step) {
        tensor.fill(job.stream(rank), static_cast<float>(step));
        sum.fill(job.stream(rank), static_cast<float>(step));
        job.run(rank, adasum(job.of(rank, "t", tensor, tensor)));
        job.run(rank, job.of(rank, "sum", sum, sum));
        ASSERT_EQ(tensor.values(job.stream(rank)), Floats(50, static_cast<float>(step)));
        ASSERT_EQ(sum.values(job.stream(rank)), Floats(20, static_cast<float>(2 * step)));
      }
    });
  };
  steps(10);
  const auto messages = job[0].counters().control_messages;
  steps(30);
  EXPECT_LT(job[0].counters().control_messages - messages, 30) << "a message for every step";
}

TEST(AdasumByNccl, IsStagedWhereARankHasNoKernelsAndPlainTensorsGoOnByNccl) {
  PackedJob job(2, [](RuntimeOptions& options) {
    if (options.rank == 1) options.gpu_kernels = nullptr;
  });
  job.on_every_rank([&](int rank) {
    DeviceArray<float> tensor(job.device(rank), Floats(9, 2.0F));
    for (int round = 0; round < 2; ++round) job.run(rank, adasum(job.of(rank, "t", tensor, tensor)));
    EXPECT_EQ(tensor.values(job.stream(rank)), Floats(9, 2.0F));
    job.run(rank, job.of(rank, "plain", tensor, tensor));
    EXPECT_EQ(tensor.values(job.stream(rank)), Floats(9, 4.0F));
  });
  EXPECT_EQ(FakeNccl::calls("ncclAllReduce"), 2);
  EXPECT_EQ(FakeNccl::calls("ncclAllGather"), 0);
  EXPECT_GT(RingJob::staged(), 0);
}

TEST(AdasumByNccl, IsStagedWhereThereIsNoMemory) {
  PackedJob job(2);
  constexpr std::size_t kCount = 1'000'000;  // 2 MB of it are to arrive
  std::vector<std::unique_ptr<DeviceArray<float>>> tensors;
  for (int rank = 0; rank < 2; ++rank) {
    tensors.push_back(std::make_unique<DeviceArray<float>>(job.device(rank), Floats(kCount, 2.0F)));
  }
  FakeGpu::fail("cuMemAlloc_v2", 0, 2);
  job.on_every_rank([&](int rank) {
    DeviceArray<float>& tensor = *tensors[static_cast<std::size_t>(rank)];
    job.run(rank, adasum(job.of(rank, "t", tensor, tensor)));
    EXPECT_TRUE(tensor.values(job.stream(rank)) == Floats(kCount, 2.0F));
  });
  EXPECT_EQ(FakeNccl::calls("ncclSend"), 0);
}

TEST(AdasumByNccl, IsStagedWhereRanksShareAGpu) {
  RingJob job(2);
  job.on_every_rank([&](int rank) {
    DeviceArray<float> tensor(job.device(rank), Floats(10, 1.5F));
    job.run(rank, adasum(job.of(rank, "t", tensor, tensor)));
    EXPECT_EQ(tensor.values(job.stream(rank)), Floats(10, 1.5F));
  });
  EXPECT_GT(RingJob::staged(), 0);
}

TEST(AdasumByNccl, TellsAllRanksOfACallThatFails) {
  for (const char* const call : {"ncclSend", "ncclAllGather"}) {
    PackedJob job(2);
    std::vector<std::unique_ptr<DeviceArray<float>>> tensors;  // until all that is in streams has ended
    for (int rank = 0; rank < 2; ++rank) {
      tensors.push_back(std::make_unique<DeviceArray<float>>(job.device(rank), Floats(50'000, 1.5F)));
    }
    FakeNccl::fail(call, 1, 3);
    job.on_every_rank([&](int rank) {
      const DeviceArray<float>& tensor = *tensors[static_cast<std::size_t>(rank)];
      // A peer may have its stream wait for a result before it learns that none comes: it gets the error by what it
      // does next.
      const auto go_on = [&] {
        for (int turn = 0; turn < 1000; ++turn) job.run(rank, adasum(job.of(rank, "t", tensor, tensor)));
      };
      EXPECT_THROW(go_on(), Error) << call;
    });
    job.end();
  }
}

TEST(AdasumByNccl, IsInTheTimelineByTheClockOfTheGpu) {
  const ringtune::testing_support::TemporaryFile file;
  PackedJob job(2);
  const auto run = [&](const std::string& name) {
    job.on_every_rank([&](int rank) {
      DeviceArray<float> tensor(job.device(rank), Floats(40'000, 1.5F));
      job.run(rank, adasum(job.of(rank, name, tensor, tensor), 0.5, 2.0));
      (void)tensor.values(job.stream(rank));
    });
  };
  run("first");
  job[0].start_timeline({.path = file.path()});
  run("t");
  job[0].stop_timeline();
  testing_support::Part part(file.path());
  for (const char* const name : {"MEMCPY_IN_FUSION_BUFFER", "RING_ALLREDUCE", "MEMCPY_OUT_FUSION_BUFFER"}) {
    ASSERT_EQ(part.spans[name].size(), 1U) << name;
    EXPECT_EQ(part.spans[name].front().bytes, 160'000) << name;
    EXPECT_EQ(part.spans[name].front().tensor, "t") << name;
  }
}

}  // namespace
}  // namespace ringtune
