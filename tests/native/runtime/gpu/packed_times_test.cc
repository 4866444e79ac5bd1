// What packed batches leave in the timeline, by NCCL and by the ring between GPUs: packing, the exchange, unpacking, by
// the GPU's clock. Eager, the fake driver does everything at the moment at which it may be done first.
#include <gtest/gtest.h>

#include <array>
#include <memory>

#include "device_part.h"
#include "packed_job.h"
#include "runtime/gpu/host_staged_path.h"

namespace ringtune {
namespace {

using testing_support::DeviceArray;
using testing_support::expect_at;
using testing_support::FakeGpu;
using testing_support::Moment;
using testing_support::Part;
using testing_support::RingJob;
using testing_support::run_group;
using testing_support::Seen;

using Ints = std::vector<std::int32_t>;
using Tensor = DeviceArray<std::int32_t>;

constexpr std::size_t kFirst = 1000;
constexpr std::size_t kSecond = 30;
constexpr std::int64_t kBytes = 4 * (kFirst + kSecond);

struct Carrier {
  const char* algorithm;
  int gpus;
};
void PrintTo(const Carrier& carrier, std::ostream* out) { *out << carrier.algorithm; }

class PackedTimes : public ::testing::TestWithParam<Carrier> {};

/// Two tensors of a rank, and all that they need.
struct Pair {
  Pair(RingJob& job, int rank) : first(job.device(rank), Ints(kFirst, 1)), second(job.device(rank), Ints(kSecond, 1)) {}
  [[nodiscard]] std::vector<Submission> submissions(RingJob& job, int rank) const {
    return {job.of(rank, "a", first, first), job.of(rank, "b", second, second)};
  }
  Tensor first;
  Tensor second;
};

/// Connects, with the batch that the tests have.
void warm_up(RingJob& job) {
  job.on_every_rank([&](int rank) {
    const Pair pair(job, rank);
    run_group(job, rank, pair.submissions(job, rank));
    (void)pair.second.values(job.stream(rank));
  });
}

TEST_P(PackedTimes, ABatchIsPackedThenExchangedWithTheOtherRanksThenUnpacked) {
  const ringtune::testing_support::TemporaryFile file;
  RingJob job(2, GetParam().gpus);
  FakeGpu::set_clock_drift(70'000);
  FakeGpu::set_eager();
  warm_up(job);
  job[0].start_timeline({.path = file.path()});
  std::vector<std::unique_ptr<Pair>> pairs;
  std::array<std::vector<Ticket>, 2> tickets;
  for (int rank = 0; rank < 2; ++rank) {
    pairs.push_back(std::make_unique<Pair>(job, rank));
    FakeGpu::hold(job.stream(rank));
    pairs.back()->first.fill(job.stream(rank), rank + 4);
    for (Submission& submission : pairs.back()->submissions(job, rank)) {
      submission.request.group = "group";
      submission.request.group_size = 2;
      tickets[static_cast<std::size_t>(rank)].push_back(job[rank].submit(submission));
    }
  }
  for (int rank = 0; rank < 2; ++rank) {
    for (const Ticket ticket : tickets[static_cast<std::size_t>(rank)]) {
      ASSERT_TRUE(job[rank].wait(ticket, Deadline::after(20'000'000'000)));
    }
  }
  const Moment there([&] { FakeGpu::release(job.stream(0)); });
  const Moment met([&] { FakeGpu::release(job.stream(1)); });
  for (int rank = 0; rank < 2; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    for (const Ticket ticket : tickets[at]) {
      job.join(rank, ticket);
      job[rank].release(ticket);
    }
    EXPECT_EQ(pairs[at]->first.values(job.stream(rank)), Ints(kFirst, 9));
    EXPECT_EQ(pairs[at]->second.values(job.stream(rank)), Ints(kSecond, 2));
  }
  job[0].stop_timeline();
  Part part(file.path());
  ASSERT_GT(part.error_ns, 0);
  for (const char* const name : {"MEMCPY_IN_FUSION_BUFFER", "RING_ALLREDUCE", "MEMCPY_OUT_FUSION_BUFFER"}) {
    ASSERT_EQ(part.spans[name].size(), 1U) << name;
    const Seen& span = part.spans[name].front();
    EXPECT_EQ(span.bytes, kBytes) << name;
    EXPECT_EQ(span.device, 0) << name;
    EXPECT_EQ(span.tensor, "a +1") << name;
    EXPECT_GT(span.batch, 0) << name;
    EXPECT_EQ(span.batch, part.spans["RING_ALLREDUCE"].front().batch) << name;
  }
  const Seen& packed = part.spans["MEMCPY_IN_FUSION_BUFFER"].front();
  const Seen& exchange = part.spans["RING_ALLREDUCE"].front();
  const Seen& unpacked = part.spans["MEMCPY_OUT_FUSION_BUFFER"].front();
  EXPECT_EQ(exchange.algorithm, GetParam().algorithm);
  expect_at(packed.begin_ns, there, part.error_ns, "its tensors were there");
  expect_at(packed.end_ns, there, part.error_ns, "packing waits for no other rank");
  expect_at(exchange.begin_ns, there, part.error_ns, "nor does the exchange begin later");
  expect_at(exchange.end_ns, met, part.error_ns, "rank 1 came");
  expect_at(unpacked.begin_ns, met, part.error_ns, "results are unpacked then");
  expect_at(unpacked.end_ns, met, part.error_ns, "at once");
  EXPECT_LE(packed.begin_ns, packed.end_ns);
  EXPECT_LE(packed.end_ns, exchange.begin_ns + 2 * part.error_ns);
  EXPECT_LE(exchange.end_ns, unpacked.begin_ns + 2 * part.error_ns);
  ASSERT_EQ(part.spans["DEVICE_QUEUE"].size(), 2U);
  for (const Seen& queue : part.spans["DEVICE_QUEUE"]) {
    EXPECT_EQ(queue.end_ns, packed.begin_ns) << "a tensor queues until its batch is packed";
    EXPECT_EQ(queue.batch, exchange.batch);
  }
  ASSERT_EQ(part.speeds.size(), 1U) << "of the exchange alone";
  const double speed = static_cast<double>(kBytes) / (static_cast<double>(exchange.end_ns - exchange.begin_ns) * 1e-9);
  EXPECT_NEAR(static_cast<double>(part.speeds[0]), speed, speed * 1e-3 + 1) << "two ranks: a byte of each result";
}

TEST_P(PackedTimes, NothingIsTimedWhileNothingIsRecorded) {
  RingJob job(2, GetParam().gpus);
  warm_up(job);
  EXPECT_EQ(FakeGpu::calls("cuEventElapsedTime"), 0);
}

TEST_P(PackedTimes, ALaunchThatFailsLeavesNoSpansAndNothingHangs) {
  const ringtune::testing_support::TemporaryFile file;
  RingJob job(2, GetParam().gpus);
  warm_up(job);
  std::vector<std::unique_ptr<Pair>> pairs;
  for (int rank = 0; rank < 2; ++rank) pairs.push_back(std::make_unique<Pair>(job, rank));
  job[0].start_timeline({.path = file.path()});
  for (int call = 0; call < 2; ++call) FakeGpu::fail("cuLaunchKernel", call, 999);  // on both ranks
  job.on_every_rank([&](int rank) {
    const Pair& pair = *pairs[static_cast<std::size_t>(rank)];
    EXPECT_THROW(
        {
          for (int i = 0; i < 1000; ++i) run_group(job, rank, pair.submissions(job, rank));
        },
        Error);
  });
  job[0].stop_timeline();
  job.end();
  Part part(file.path());
  EXPECT_LE(part.spans["RING_ALLREDUCE"].size(), 1U);
}

INSTANTIATE_TEST_SUITE_P(DataPaths, PackedTimes, ::testing::Values(Carrier{"nccl", 2}, Carrier{"gpu-ring", 1}));

TEST(RingTimes, WhatGoesInRoundsIsPackedOnceAndUnpackedOnceInTheTimeline) {
  constexpr std::size_t kCount = RingJob::kBufferBytes / 4 * 3 + 17;
  const ringtune::testing_support::TemporaryFile file;
  RingJob job(2);
  FakeGpu::set_eager();
  std::vector<std::unique_ptr<Tensor>> tensors;
  for (int rank = 0; rank < 2; ++rank) tensors.push_back(std::make_unique<Tensor>(job.device(rank), Ints(kCount, 1)));
  const auto sum = [&] {
    job.on_every_rank([&](int rank) {
      const Tensor& tensor = *tensors[static_cast<std::size_t>(rank)];
      job.run(rank, job.of(rank, "t", tensor, tensor));
      (void)tensor.values(job.stream(rank));
    });
  };
  sum();
  job[0].start_timeline({.path = file.path()});
  sum();
  job[0].stop_timeline();
  Part part(file.path());
  for (const char* const name : {"MEMCPY_IN_FUSION_BUFFER", "RING_ALLREDUCE", "MEMCPY_OUT_FUSION_BUFFER"}) {
    ASSERT_EQ(part.spans[name].size(), 1U) << name;
    EXPECT_EQ(part.spans[name].front().bytes, static_cast<std::int64_t>(4 * kCount)) << name;
  }
}

TEST(RingTimes, ABroadcastIsOneSpan) {
  const ringtune::testing_support::TemporaryFile file;
  RingJob job(2);
  FakeGpu::set_eager();
  const auto send = [&] {
    job.on_every_rank([&](int rank) {
      const Tensor tensor(job.device(rank), Ints(100, rank));
      Submission submission = job.of(rank, "b", tensor, tensor);
      submission.request.kind = CollectiveKind::kBroadcast;
      job.run(rank, std::move(submission));
      EXPECT_EQ(tensor.values(job.stream(rank)), Ints(100, 0));
    });
  };
  send();
  job[0].start_timeline({.path = file.path()});
  send();
  job[0].stop_timeline();
  Part part(file.path());
  ASSERT_EQ(part.spans["RING_BROADCAST"].size(), 1U);
  EXPECT_EQ(part.spans["RING_BROADCAST"].front().algorithm, "gpu-ring");
  EXPECT_EQ(part.spans["RING_BROADCAST"].front().bytes, 400);
  EXPECT_EQ(part.spans["MEMCPY_IN_FUSION_BUFFER"].size(), 0U);
}

}  // namespace
}  // namespace ringtune
