// What goes wrong with tensors in GPUs' memory: refused, reported, and nothing is left.
#include <gtest/gtest.h>

#include "base/error.h"
#include "staged_job.h"
#include "thrown.h"

namespace ringtune {
namespace {

using testing_support::DeviceArray;
using testing_support::DeviceJob;
using testing_support::FakeGpu;
using testing_support::message_of;

using Floats = std::vector<float>;

TEST(HostStagedFailures, ADriverThatIsMissingIsSaidWhenATensorNeedsIt) {
  DeviceJob job(1, [](RuntimeOptions& options) { options.cuda_driver = "libno-such-driver.so"; });
  DeviceArray<float> tensor(job.device(), Floats(4, 1.0F));
  const std::string message = message_of<DeviceError>([&] { (void)job[0].submit(job.of(0, "t", tensor, tensor)); });
  EXPECT_EQ(message.find("tensors on a GPU need NVIDIA's driver, which cannot be opened"), 0U) << message;
  Floats host(2, 1.0F);
  testing_support::finish(job[0], job[0].submit(testing_support::allreduce_of("t", host)));
}

TEST(HostStagedFailures, WhatOneRankCanRefuseIsRefusedAtOnce) {
  DeviceJob job(1);
  DeviceArray<float> tensor(job.device(), Floats(4, 1.0F));
  Floats host(4, 1.0F);
  Submission on_host = job.of(0, "t", tensor, tensor);
  on_host.input = host.data();
  EXPECT_EQ(message_of<InvalidArgument>([&] { (void)job[0].submit(on_host); }),
            "tensor 't': its memory is no GPU's, expected that of GPU 0");
  Submission elsewhere = job.of(0, "t", tensor, tensor);
  elsewhere.device = DevicePlace{7, nullptr};
  EXPECT_NE(message_of<DeviceError>([&] { (void)job[0].submit(elsewhere); }).find("there is no such GPU"),
            std::string::npos);
  FakeGpu::capture(job.stream(0), true);
  EXPECT_EQ(message_of<InvalidArgument>([&] {
              (void)job[0].submit(job.of(0, "t", tensor, tensor));
            }).find("tensor 't' cannot be part of a CUDA graph"),
            0U);
  FakeGpu::capture(job.stream(0), false);
  EXPECT_EQ(job.result(0, job[0].submit(job.of(0, "t", tensor, tensor)), tensor), Floats(4, 1.0F));
}

TEST(HostStagedFailures, ANameInFlightIsRefusedUntilItsOperationIsDone) {
  DeviceJob job(1);
  DeviceArray<float> tensor(job.device(), Floats(4, 1.0F));
  FakeGpu::hold(job.stream(0));
  const Ticket ticket = job[0].submit(job.of(0, "t", tensor, tensor));
  EXPECT_EQ(message_of<InvalidArgument>([&] {
              (void)job[0].submit(job.of(0, "t", tensor, tensor));
            }).find("Duplicate tensor name 't'"),
            0U);
  FakeGpu::release(job.stream(0));
  EXPECT_EQ(job.result(0, ticket, tensor), Floats(4, 1.0F));
  EXPECT_THROW(job.join(0, ticket), InvalidArgument) << "it was released";
  EXPECT_EQ(job.result(0, job[0].submit(job.of(0, "t", tensor, tensor)), tensor), Floats(4, 1.0F));
}

TEST(HostStagedFailures, AnOperationThatNobodyWaitsForEndsAllTheSame) {
  DeviceJob job(1);
  DeviceArray<float> tensor(job.device(), Floats(4, 1.0F));
  for (int i = 0; i < 50; ++i) {
    const std::string name = "t" + std::to_string(i);
    job[0].release(job[0].submit(job.of(0, name, tensor, tensor)));
  }
  EXPECT_EQ(job.result(0, job[0].submit(job.of(0, "last", tensor, tensor)), tensor), Floats(4, 1.0F));
}

/// A call of the driver that fails, and what a program sees of it.
struct Fault {
  const char* call;
  int index;     // of that call from the submission on
  bool at_once;  // submit() throws
};
void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.call << " " << fault.index; }

class HostStagedFault : public testing::TestWithParam<Fault> {};

TEST_P(HostStagedFault, IsTheOperationsAndNotTheJobs) {
  const Fault fault = GetParam();
  DeviceJob job(1);
  DeviceArray<float> tensor(job.device(), Floats(4, 1.0F));
  DeviceArray<float> other(job.device(), Floats(4, 0.0F));
  (void)job.result(0, job[0].submit(job.of(0, "first", tensor, other)), other);  // all is open
  FakeGpu::fail(fault.call, fault.index, 700);
  Ticket ticket = 0;
  const auto submit = [&] { ticket = job[0].submit(job.of(0, "t", tensor, other)); };
  const std::string name = std::string(fault.call).substr(0, std::string(fault.call).find('_'));
  if (fault.at_once) {
    EXPECT_EQ(message_of<DeviceError>(submit).find(name + " failed: an illegal memory access"), 0U);
  } else {
    submit();
    EXPECT_EQ(message_of<DeviceError>([&] { job.join(0, ticket); }).find(name + " failed: an illegal memory access"),
              0U);
    job[0].release(ticket);
  }
  tensor.fill(job.stream(0), 5.0F);
  EXPECT_EQ(job.result(0, job[0].submit(job.of(0, "t", tensor, other)), other), Floats(4, 5.0F));
}

INSTANTIATE_TEST_SUITE_P(Calls, HostStagedFault,
                         testing::Values(Fault{"cuStreamIsCapturing", 0, true}, Fault{"cuEventRecord", 0, true},
                                         Fault{"cuStreamWaitEvent", 0, true}, Fault{"cuStreamWaitEvent", 1, true},
                                         Fault{"cuMemcpyDtoHAsync_v2", 0, true}, Fault{"cuEventRecord", 1, true},
                                         Fault{"cuEventSynchronize", 0, false}, Fault{"cuMemcpyHtoDAsync_v2", 0, false},
                                         Fault{"cuEventRecord", 2, false}, Fault{"cuEventRecord", 3, false}));

TEST(HostStagedFailures, ShuttingDownEndsWhatIsInFlight) {
  DeviceJob job(2);
  DeviceArray<float> tensor(job.device(), Floats(4, 1.0F));
  FakeGpu::hold(job.stream(0));
  const Ticket busy = job[0].submit(job.of(0, "busy", tensor, tensor));
  FakeGpu::release(job.stream(0));
  const Ticket ready = job[0].submit(job.of(0, "ready", tensor, tensor));
  job[0].shutdown(0);
  EXPECT_THROW(job.join(0, busy), ShutDown);
  EXPECT_THROW(job.join(0, ready), ShutDown);
  EXPECT_THROW((void)job[0].submit(job.of(0, "t", tensor, tensor)), ShutDown);
}

TEST(HostStagedFailures, ATensorMayGoWhenItsFailureWasTold) {
  DeviceJob job(1);
  DeviceArray<float> tensor(job.device(), Floats(4, 1.0F));
  FakeGpu::fail("cuEventRecord", 2, 700);  // behind the copy back, which is under way
  Submission submission = job.of(0, "t", tensor, tensor);
  submission.request.postscale = 2.0;
  const Ticket ticket = job[0].submit(std::move(submission));
  EXPECT_THROW(job.join(0, ticket), DeviceError);
  tensor.free();
  DeviceArray<float> next(job.device(), Floats(4, 3.0F));
  EXPECT_EQ(job.result(0, job[0].submit(job.of(0, "u", next, next)), next), Floats(4, 3.0F))
      << "a copy into freed memory breaks the context";
}

}  // namespace
}  // namespace ringtune
