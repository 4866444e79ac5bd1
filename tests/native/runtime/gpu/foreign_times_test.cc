// Collectives that another library puts into a GPU's streams: when they ran, by the GPU's clock, and what does not
// disturb the job. Eager, the fake driver does everything at the moment at which it may be done first.
#include "runtime/gpu/foreign_times.h"

#include <gtest/gtest.h>

#include "device_part.h"
#include "staged_job.h"

namespace ringtune {
namespace {

using testing_support::DeviceJob;
using testing_support::expect_at;
using testing_support::FakeGpu;
using testing_support::Moment;
using testing_support::Part;
using testing_support::Seen;

constexpr std::uint32_t kBatch = 0x4000'0001;

/// A job of one rank that records, a stream of the program, and two of the library that carries its collectives.
class ForeignTimesTest : public ::testing::Test {
 protected:
  ForeignTimesTest() : job_(1) {
    FakeGpu::set_clock_drift(70'000);
    FakeGpu::set_eager();
    const CudaDevice::Current current(job_.device());
    for (auto& stream : library_) stream = std::make_unique<CudaStream>(job_.device());
    job_[0].start_timeline({.path = file_.path()});
  }
  ~ForeignTimesTest() override {
    const CudaDevice::Current current(job_.device());
    for (auto& stream : library_) stream.reset();
  }

  [[nodiscard]] CudaStreamHandle program() const { return job_.stream(0); }
  [[nodiscard]] CudaStreamHandle library(std::size_t at) const { return library_[at]->handle(); }

  std::uint64_t begin(const std::string& name, Stage stage, std::uint32_t batch, CudaStreamHandle stream) {
    Span about{now_ns(), 0, 4096, 0, batch, 0, 0, stage, static_cast<std::uint8_t>(CollectiveKind::kAllreduce)};
    about.peer = 0;
    return job_[0].begin_foreign(name, about, stream);
  }
  /// What is put into `stream` from now on waits for what `before` holds.
  void follow(CudaStreamHandle stream, CudaStreamHandle before) {
    const CudaDevice::Current current(job_.device());
    CudaEvent event(job_.device());
    event.record(before);
    job_.device().check(job_.device().api().stream_wait_event(stream, event.handle(), 0), "cuStreamWaitEvent");
  }
  Part recorded() {
    job_[0].stop_timeline();
    return Part(file_.path());
  }

  testing_support::TemporaryFile file_;
  DeviceJob job_;
  std::array<std::unique_ptr<CudaStream>, 2> library_;
};

TEST_F(ForeignTimesTest, AreThoseOfTheGpuWithABound) {
  FakeGpu::hold(program());
  const Moment called([&] {
    const std::uint64_t work = begin("bucket", Stage::kCommunicate, kBatch, program());
    ASSERT_NE(work, 0U);
    follow(library(0), program());
    FakeGpu::hold(library(0));
    job_[0].end_foreign(work, library(0));
  });
  const std::uint64_t wait = begin("bucket", Stage::kDeviceWait, kBatch, program());
  follow(program(), library(0));
  job_[0].end_foreign(wait, program());
  const Moment there([&] { FakeGpu::release(program()); });
  const Moment met([&] { FakeGpu::release(library(0)); });
  Part part = recorded();
  ASSERT_GT(part.error_ns, 0);
  for (const char* const name : {"WAIT_FOR_DATA", "DEVICE_QUEUE", "RING_ALLREDUCE", "DEVICE_WAIT"}) {
    ASSERT_EQ(part.spans[name].size(), 1U) << name;
    const Seen& span = part.spans[name].front();
    EXPECT_EQ(span.tensor, "bucket") << name;
    EXPECT_EQ(span.batch, kBatch) << name;
    EXPECT_EQ(span.bytes, 4096) << name;
    EXPECT_EQ(span.device, 0) << name;
  }
  expect_at(part.spans["WAIT_FOR_DATA"].front().begin_ns, called, part.error_ns, "it was called");
  expect_at(part.spans["WAIT_FOR_DATA"].front().end_ns, there, part.error_ns, "the GPU had its data");
  expect_at(part.spans["RING_ALLREDUCE"].front().begin_ns, there, part.error_ns, "it began at once");
  expect_at(part.spans["RING_ALLREDUCE"].front().end_ns, met, part.error_ns, "the other ranks came");
  expect_at(part.spans["DEVICE_WAIT"].front().begin_ns, there, part.error_ns, "the program's stream waited");
  expect_at(part.spans["DEVICE_WAIT"].front().end_ns, met, part.error_ns, "until then");
  EXPECT_GT(FakeGpu::calls("cuThreadExchangeStreamCaptureMode"), 0) << "looks at events would break a CUDA graph";
}

TEST_F(ForeignTimesTest, OneThatQueuesBehindAnotherOfItsGroupBeginsWhenThatHasEnded) {
  FakeGpu::hold(library(0));
  FakeGpu::hold(library(1));
  for (std::size_t at : {0U, 1U}) {
    const std::uint64_t work =
        begin(at == 0 ? "first" : "second", Stage::kCommunicate, kBatch + static_cast<std::uint32_t>(at), program());
    if (at == 1) follow(library(1), library(0));
    job_[0].end_foreign(work, library(at));
  }
  const Moment first([&] { FakeGpu::release(library(0)); });
  const Moment second([&] { FakeGpu::release(library(1)); });
  Part part = recorded();
  ASSERT_EQ(part.spans["RING_ALLREDUCE"].size(), 2U);
  const Seen& before = part.spans["RING_ALLREDUCE"][0];
  const Seen& behind = part.spans["RING_ALLREDUCE"][1];
  expect_at(before.end_ns, first, part.error_ns, "the first one's end");
  EXPECT_EQ(behind.begin_ns, before.end_ns);
  expect_at(behind.end_ns, second, part.error_ns, "the second one's end");
  EXPECT_EQ(part.spans["DEVICE_QUEUE"][1].end_ns, behind.begin_ns) << "it queued until then";
}

TEST_F(ForeignTimesTest, OneThatHangsHoldsNothingUp) {
  FakeGpu::hold(library(0));
  job_[0].end_foreign(begin("hangs", Stage::kCommunicate, kBatch, program()), library(0));
  const std::int64_t before_ns = now_ns();
  EXPECT_TRUE(recorded().spans["RING_ALLREDUCE"].empty());
  job_.end();
  EXPECT_LT(now_ns() - before_ns, 5'000'000'000);
  FakeGpu::release(library(0));
}

TEST_F(ForeignTimesTest, WhatIsDroppedOrRecordedIntoAGraphLeavesNothing) {
  job_[0].drop_foreign(begin("dropped", Stage::kCommunicate, kBatch, program()));
  FakeGpu::capture(program(), true);
  EXPECT_EQ(begin("in a graph", Stage::kCommunicate, kBatch + 1, program()), 0U);
  FakeGpu::capture(program(), false);
  job_[0].end_foreign(begin("after it", Stage::kCommunicate, kBatch + 2, program()), program());
  Part part = recorded();
  ASSERT_EQ(part.spans["RING_ALLREDUCE"].size(), 1U);
  EXPECT_EQ(part.spans["RING_ALLREDUCE"].front().tensor, "after it");
  EXPECT_EQ(begin("nobody records", Stage::kCommunicate, kBatch + 3, program()), 0U);
}

TEST_F(ForeignTimesTest, ADriverThatRefusesCostsTheTimesAlone) {
  FakeGpu::fail("cuEventRecord", 0, 700);
  EXPECT_EQ(begin("first", Stage::kCommunicate, kBatch, program()), 0U);
  EXPECT_EQ(begin("second", Stage::kCommunicate, kBatch + 1, program()), 0U) << "it is not asked again";
  EXPECT_TRUE(recorded().spans["RING_ALLREDUCE"].empty());
}

}  // namespace
}  // namespace ringtune
