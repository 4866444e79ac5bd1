// What batches from GPU to GPU leave in the timeline, on the fakes. Eager, the fake driver does everything at the
// moment at which it may be done first, so that a test knows when that was.
#include <gtest/gtest.h>

#include "base/clock.h"
#include "device_part.h"
#include "nccl_job.h"
#include "runtime/gpu/host_staged_path.h"
#include "thrown.h"
#include "warm_up.h"

namespace ringtune {
namespace {

using testing_support::DeviceArray;
using testing_support::expect_at;
using testing_support::FakeGpu;
using testing_support::FakeNccl;
using testing_support::message_of;
using testing_support::Moment;
using testing_support::NcclJob;
using testing_support::Part;
using testing_support::Seen;
using testing_support::warm_up;

using Ints = std::vector<std::int32_t>;

/// Connects, with the group that the tests have.
TEST(NcclTimes, ABatchWaitsForItsDataThenForTheOtherRanksAndTheStreamForIt) {
  const ringtune::testing_support::TemporaryFile file;
  NcclJob job(2);
  FakeGpu::set_clock_drift(70'000);
  FakeGpu::set_eager();
  warm_up(job);
  job[0].start_timeline({.path = file.path()});
  std::vector<std::unique_ptr<DeviceArray<std::int32_t>>> tensors;
  std::vector<Ticket> tickets;
  for (int rank = 0; rank < 2; ++rank) {
    tensors.push_back(std::make_unique<DeviceArray<std::int32_t>>(job.device(rank), Ints(1000, 0)));
    FakeGpu::hold(job.stream(rank));
    tensors.back()->fill(job.stream(rank), rank + 4);
    tickets.push_back(job[rank].submit(job.of(rank, "grad", *tensors.back(), *tensors.back())));
  }
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(job[rank].wait(tickets[static_cast<std::size_t>(rank)], Deadline::after(20'000'000'000)));
  }
  const Moment there([&] { FakeGpu::release(job.stream(0)); });
  const Moment asked([&] { job.join(0, tickets[0]); });
  const Moment met([&] { FakeGpu::release(job.stream(1)); });
  job.join(1, tickets[1]);
  for (int rank = 0; rank < 2; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    EXPECT_EQ(tensors[index]->values(job.stream(rank)), Ints(1000, 9));
    job[rank].release(tickets[index]);
  }
  job[0].stop_timeline();
  Part part(file.path());
  for (const char* const name : {"WAIT_FOR_DATA", "DEVICE_QUEUE", "RING_ALLREDUCE", "DEVICE_WAIT"}) {
    ASSERT_EQ(part.spans[name].size(), 1U) << name;
    const Seen& span = part.spans[name].front();
    EXPECT_EQ(span.bytes, 4000) << name;
    EXPECT_EQ(span.device, 0) << name;
    EXPECT_EQ(span.tensor, "grad") << name;
  }
  ASSERT_GT(part.error_ns, 0);
  const Seen& data = part.spans["WAIT_FOR_DATA"].front();
  const Seen& queue = part.spans["DEVICE_QUEUE"].front();
  const Seen& nccl = part.spans["RING_ALLREDUCE"].front();
  const Seen& wait = part.spans["DEVICE_WAIT"].front();
  expect_at(data.end_ns, there, part.error_ns, "the tensor was there");
  EXPECT_EQ(queue.begin_ns, data.end_ns);
  EXPECT_EQ(queue.end_ns, nccl.begin_ns);
  expect_at(nccl.begin_ns, there, part.error_ns, "nothing else was in its way");
  expect_at(nccl.end_ns, met, part.error_ns, "rank 1 came");
  expect_at(wait.begin_ns, asked, part.error_ns, "the stream came to where it needs the result");
  expect_at(wait.end_ns, met, part.error_ns, "and went on when that was there");
  EXPECT_EQ(nccl.algorithm, "nccl");
  EXPECT_GT(nccl.batch, 0);
  EXPECT_EQ(data.batch, nccl.batch);
  EXPECT_EQ(queue.batch, nccl.batch);
  ASSERT_EQ(part.speeds.size(), 1U);
  const double speed = 4000 / (static_cast<double>(nccl.end_ns - nccl.begin_ns) * 1e-9);
  EXPECT_NEAR(static_cast<double>(part.speeds[0]), speed, speed * 1e-3 + 1) << "two ranks: a byte of each result";
}

TEST(NcclTimes, TensorsOfABatchQueueUntilTheLastOfThemIsThere) {
  const ringtune::testing_support::TemporaryFile file;
  NcclJob job(2);
  FakeGpu::set_eager();
  warm_up(job);
  job[0].start_timeline({.path = file.path()});
  Moment early([] {});
  Moment late([] {});
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> first(job.device(rank), Ints(10, rank + 1));
    DeviceArray<std::int32_t> second(job.device(rank), Ints(30, rank + 2));
    std::vector<Ticket> tickets;
    const auto submit = [&](const char* name, DeviceArray<std::int32_t>& tensor) {
      Submission submission = job.of(rank, name, tensor, tensor);
      submission.request.group = "pair";
      submission.request.group_size = 2;
      tickets.push_back(job[rank].submit(std::move(submission)));
    };
    Moment here([&] { submit("a", first); });
    if (rank == 0) early = here;
    FakeGpu::hold(job.stream(rank));
    second.fill(job.stream(rank), rank + 5);
    submit("b", second);
    for (const Ticket ticket : tickets) ASSERT_TRUE(job[rank].wait(ticket, Deadline::after(20'000'000'000)));
    here = Moment([&] { FakeGpu::release(job.stream(rank)); });
    if (rank == 0) late = here;
    for (const Ticket ticket : tickets) {
      job.join(rank, ticket);
      job[rank].release(ticket);
    }
    EXPECT_EQ(first.values(job.stream(rank)), Ints(10, 3));
    EXPECT_EQ(second.values(job.stream(rank)), Ints(30, 11));
  });
  job[0].stop_timeline();
  Part part(file.path());
  ASSERT_EQ(part.spans["RING_ALLREDUCE"].size(), 1U);
  const Seen& nccl = part.spans["RING_ALLREDUCE"].front();
  EXPECT_EQ(nccl.bytes, 160);
  EXPECT_NE(nccl.tensor.find(" +1"), std::string::npos) << nccl.tensor;
  ASSERT_EQ(part.spans["DEVICE_QUEUE"].size(), 2U);
  for (const Seen& queue : part.spans["DEVICE_QUEUE"]) {
    expect_at(queue.begin_ns, queue.tensor == "a" ? early : late, part.error_ns, queue.tensor.c_str());
    expect_at(queue.end_ns, late, part.error_ns, queue.tensor.c_str());
    EXPECT_EQ(queue.end_ns, nccl.begin_ns);
  }
}

TEST(NcclTimes, NothingIsTimedWhileNothingIsRecordedAndWhatWasSubmittedBeforeHasNoSpans) {
  const ringtune::testing_support::TemporaryFile file;
  NcclJob job(2);
  warm_up(job);
  EXPECT_EQ(FakeGpu::calls("cuEventElapsedTime"), 0);
  DeviceArray<std::int32_t> before(job.device(0), Ints(8, 1));
  const Ticket ticket = job[0].submit(job.of(0, "before", before, before));
  job[0].start_timeline({.path = file.path()});
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> tensor(job.device(rank), Ints(8, 1));
    if (rank == 1) job.run(rank, job.of(rank, "before", tensor, tensor));
    if (rank == 0) {
      ASSERT_TRUE(job[0].wait(ticket, Deadline::after(20'000'000'000)));
      job[0].release(ticket);
    }
    job.run(rank, job.of(rank, "after", tensor, tensor));
    (void)tensor.values(job.stream(rank));
  });
  (void)before.values(job.stream(0));
  job[0].stop_timeline();
  Part part(file.path());
  ASSERT_EQ(part.spans["RING_ALLREDUCE"].size(), 1U);
  EXPECT_EQ(part.spans["RING_ALLREDUCE"].front().tensor, "after");
}

TEST(NcclTimes, ADriverThatTellsNoTimesCostsTheSpansNotTheResult) {
  const ringtune::testing_support::TemporaryFile file;
  NcclJob job(2);
  warm_up(job);
  job[0].start_timeline({.path = file.path()});
  FakeGpu::fail("cuEventElapsedTime", 0, 999);
  for (int round = 0; round < 3; ++round) {
    job.on_every_rank([&](int rank) {
      DeviceArray<std::int32_t> tensor(job.device(rank), Ints(8, rank + 1));
      job.run(rank, job.of(rank, "t", tensor, tensor));
      EXPECT_EQ(tensor.values(job.stream(rank)), Ints(8, 3));
    });
    job[0].stop_timeline();
  }
  Part part(file.path());
  EXPECT_EQ(part.spans["RING_ALLREDUCE"].size(), 0U);
}

TEST(NcclTimes, ALaunchThatFailsLeavesNoSpansAndNothingHangs) {
  const ringtune::testing_support::TemporaryFile file;
  NcclJob job(2);
  warm_up(job);
  job[0].start_timeline({.path = file.path()});
  FakeNccl::fail("ncclAllReduce", 0, 3);
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> tensor(job.device(rank), Ints(8, 1));
    // One rank's call fails; what the other put into its stream never ends by itself.
    EXPECT_NE(message_of<Error>([&] {
                for (int i = 0; i < 1000; ++i) job.run(rank, job.of(rank, "t", tensor, tensor));
              }),
              "nothing was thrown");
  });
  job[0].stop_timeline();
  job.end();
  Part part(file.path());
  EXPECT_LE(part.spans["RING_ALLREDUCE"].size(), 1U) << "an aborted batch may have ended";
}

}  // namespace
}  // namespace ringtune
