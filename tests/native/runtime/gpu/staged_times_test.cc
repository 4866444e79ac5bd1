// What operations on GPUs' tensors leave in the timeline, on the fake driver, whose clock is another one than the
// host's.
#include <gtest/gtest.h>

#include "device_part.h"
#include "runtime/gpu/host_staged_path.h"
#include "staged_job.h"
#include "thrown.h"

namespace ringtune {
namespace {

using testing_support::DeviceArray;
using testing_support::DeviceJob;
using testing_support::FakeGpu;
using testing_support::message_of;
using testing_support::Part;
using testing_support::Seen;

using Ints = std::vector<std::int32_t>;

constexpr std::size_t kPartBytes = 8 << 20;  // the default of gpu_part_bytes
constexpr std::array kDeviceNames{"WAIT_FOR_DATA", "DEVICE_QUEUE", "MEMCPY_IN_HOST_BUFFER", "MEMCPY_OUT_HOST_BUFFER",
                                  "DEVICE_WAIT"};

TEST(HostStagedTimes, SayWhenAnOperationWaitedForItsDataAndWasCopied) {
  const ringtune::testing_support::TemporaryFile file;
  DeviceJob job(1);
  FakeGpu::set_clock_drift(70'000);
  job[0].start_timeline({.path = file.path()});
  DeviceArray<std::int32_t> tensor(job.device(), Ints(1000, 3));
  FakeGpu::hold(job.stream(0));
  tensor.fill(job.stream(0), 4);
  Submission submission = job.of(0, "grad", tensor, tensor);
  submission.request.postscale = 2.0;
  const std::int64_t submitted_ns = now_ns();
  const Ticket ticket = job[0].submit(std::move(submission));
  const std::int64_t released_ns = now_ns();
  FakeGpu::release(job.stream(0));
  EXPECT_EQ(job.result(0, ticket, tensor), Ints(1000, 8));
  job[0].stop_timeline();
  const std::int64_t end_ns = now_ns();
  Part part(file.path());
  for (const char* const name : kDeviceNames) {
    ASSERT_EQ(part.spans[name].size(), 1U) << name;
    const Seen& span = part.spans[name].front();
    EXPECT_EQ(span.bytes, 4000) << name;
    EXPECT_EQ(span.device, 0) << name;
    EXPECT_EQ(span.tensor, "grad") << name;
    EXPECT_GE(span.begin_ns, submitted_ns - part.error_ns) << name;
    EXPECT_LE(span.end_ns, end_ns + part.error_ns) << name;
  }
  EXPECT_GT(part.error_ns, 0);
  const Seen& wait = part.spans["WAIT_FOR_DATA"].front();
  const Seen& in = part.spans["MEMCPY_IN_HOST_BUFFER"].front();
  const Seen& out = part.spans["MEMCPY_OUT_HOST_BUFFER"].front();
  EXPECT_LE(wait.begin_ns, released_ns);
  EXPECT_GE(wait.end_ns, released_ns - part.error_ns) << "the stream was held until then";
  EXPECT_EQ(part.spans["DEVICE_QUEUE"].front().begin_ns, wait.end_ns);
  EXPECT_EQ(part.spans["DEVICE_QUEUE"].front().end_ns, in.begin_ns);
  EXPECT_LE(in.end_ns, out.begin_ns + 2 * part.error_ns);
  EXPECT_GE(part.spans["DEVICE_WAIT"].front().end_ns, out.end_ns - 2 * part.error_ns) << "that is what it waited for";
  const Seen& reduced = part.spans["RING_ALLREDUCE"].front();
  EXPECT_LE(in.end_ns - part.error_ns, reduced.begin_ns) << "by the GPU's clock and by the host's";
  EXPECT_GE(out.begin_ns + part.error_ns, reduced.begin_ns);
}

TEST(HostStagedTimes, ALargeTensorHasACopyAPart) {
  constexpr std::size_t kTwoParts = 2 * kPartBytes / sizeof(std::int32_t) + 1000;
  const ringtune::testing_support::TemporaryFile file;
  DeviceJob job(2);
  job[0].start_timeline({.path = file.path()});
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> tensor(job.device(), Ints(kTwoParts, rank));
    EXPECT_EQ(job.result(rank, job[rank].submit(job.of(rank, "t", tensor, tensor)), tensor), Ints(kTwoParts, 1));
  });
  job[0].stop_timeline();
  Part part(file.path());
  EXPECT_EQ(part.spans["WAIT_FOR_DATA"].size(), 1U);
  EXPECT_EQ(part.spans["DEVICE_QUEUE"].size(), 1U);
  for (const char* const name : {"MEMCPY_IN_HOST_BUFFER", "MEMCPY_OUT_HOST_BUFFER"}) {
    ASSERT_EQ(part.spans[name].size(), 3U) << name;
    std::int64_t bytes = 0;
    for (const Seen& span : part.spans[name]) bytes += span.bytes;
    EXPECT_EQ(bytes, 4 * static_cast<std::int64_t>(kTwoParts)) << name;
  }
}

TEST(HostStagedTimes, ManyOperationsUseTheirEventsAgain) {
  const ringtune::testing_support::TemporaryFile file;
  DeviceJob job(1);
  job[0].start_timeline({.path = file.path()});
  DeviceArray<std::int32_t> tensor(job.device(), Ints(10, 1));
  const auto run = [&](int count) {
    for (int i = 0; i < count; ++i) {
      Submission submission = job.of(0, "t", tensor, tensor);
      submission.request.postscale = 1.0 + 1e-9;
      (void)job.result(0, job[0].submit(std::move(submission)), tensor);
    }
  };
  run(5);
  job[0].stop_timeline();
  const int alive = FakeGpu::alive();
  job[0].start_timeline({.path = file.path()});
  run(1000);
  job[0].stop_timeline();
  // Each has five, and three for the wait for it. How many are under way at once is the scheduler's matter.
  EXPECT_LT(FakeGpu::alive(), alive + 8 * 500);
  Part first(file.path());
  EXPECT_EQ(first.spans["MEMCPY_IN_HOST_BUFFER"].size(), 5U);
}

TEST(HostStagedTimes, NothingIsTimedWhileNothingIsRecorded) {
  DeviceJob job(1);
  DeviceArray<std::int32_t> tensor(job.device(), Ints(10, 1));
  Submission submission = job.of(0, "t", tensor, tensor);
  submission.request.postscale = 2.0;
  EXPECT_EQ(job.result(0, job[0].submit(std::move(submission)), tensor), Ints(10, 2));
  EXPECT_EQ(FakeGpu::calls("cuEventElapsedTime"), 0);
}

TEST(HostStagedTimes, ADriverThatTellsNoTimesCostsTheSpansNotTheResult) {
  const ringtune::testing_support::TemporaryFile file;
  DeviceJob job(1);
  job[0].start_timeline({.path = file.path()});
  FakeGpu::fail("cuEventElapsedTime", 0, 999);
  DeviceArray<std::int32_t> tensor(job.device(), Ints(10, 1));
  for (int round = 1; round <= 3; ++round) {
    Submission submission = job.of(0, "t", tensor, tensor);
    submission.request.postscale = 2.0;
    EXPECT_EQ(job.result(0, job[0].submit(std::move(submission)), tensor), Ints(10, 1 << round));
    job[0].stop_timeline();
  }
  Part part(file.path());
  EXPECT_EQ(part.spans["MEMCPY_IN_HOST_BUFFER"].size(), 0U);
  EXPECT_EQ(part.spans["WAIT_FOR_DATA"].size(), 0U);
}

TEST(HostStagedTimes, AFailedOperationLeavesNoSpansAndTheNextDoes) {
  const ringtune::testing_support::TemporaryFile file;
  DeviceJob job(1);
  job[0].start_timeline({.path = file.path()});
  DeviceArray<std::int32_t> tensor(job.device(), Ints(10, 1));
  FakeGpu::fail("cuMemcpyDtoHAsync_v2", 0, 1);
  Submission submission = job.of(0, "t", tensor, tensor);
  submission.request.postscale = 2.0;
  EXPECT_NE(message_of<DeviceError>([&] { (void)job[0].submit(submission); }), "nothing was thrown");
  EXPECT_EQ(job.result(0, job[0].submit(submission), tensor), Ints(10, 2));
  job[0].stop_timeline();
  Part part(file.path());
  EXPECT_EQ(part.spans["MEMCPY_IN_HOST_BUFFER"].size(), 1U);
  EXPECT_EQ(part.spans["WAIT_FOR_DATA"].size(), 1U);
}

}  // namespace
}  // namespace ringtune
