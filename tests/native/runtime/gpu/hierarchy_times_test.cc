// What an allreduce within hosts and across leaves in the timeline, on the fakes.
#include <gtest/gtest.h>

#include <algorithm>

#include "device_part.h"
#include "hierarchy_job.h"

namespace ringtune {
namespace {

using testing_support::DeviceArray;
using testing_support::FakeGpu;
using testing_support::HierarchyJob;
using testing_support::kTwoByTwo;
using testing_support::Part;
using testing_support::Seen;

using Ints = std::vector<std::int32_t>;

TEST(HierarchyTimes, BothStagesTheCopiesAndTheWayAcrossAreInTheirOrder) {
  const ringtune::testing_support::TemporaryFile file;
  HierarchyJob job(kTwoByTwo);
  FakeGpu::set_eager();
  const auto sum = [&](int rank, const char* name) {
    DeviceArray<std::int32_t> tensor(job.device(rank), Ints(1000, rank));
    job.run(rank, job.of(rank, name, tensor, tensor));
    EXPECT_EQ(tensor.values(job.stream(rank)), Ints(1000, 6));
  };
  job.on_every_rank([&](int rank) { sum(rank, "first"); });
  job[0].start_timeline({.path = file.path()});
  job.on_every_rank([&](int rank) { sum(rank, "grad"); });
  job[0].stop_timeline();
  Part part(file.path());
  for (const char* const name :
       {"WAIT_FOR_DATA", "DEVICE_QUEUE", "MEMCPY_IN_HOST_BUFFER", "MEMCPY_OUT_HOST_BUFFER", "DEVICE_WAIT"}) {
    ASSERT_EQ(part.spans[name].size(), 1U) << name;
    EXPECT_EQ(part.spans[name].front().device, 0) << name;
  }
  std::vector<Seen> nccl;
  std::vector<Seen> across;
  for (const auto& [name, spans] : part.spans) {
    if (name.find("_ALLREDUCE") == std::string::npos || name.find("NEGOTIATE") != std::string::npos) continue;
    for (const Seen& span : spans) (span.algorithm == "nccl" ? nccl : across).push_back(span);
  }
  ASSERT_EQ(nccl.size(), 2U);
  ASSERT_EQ(across.size(), 1U);
  std::sort(nccl.begin(), nccl.end(), [](const Seen& a, const Seen& b) { return a.begin_ns < b.begin_ns; });
  const Seen& to_host = part.spans["MEMCPY_IN_HOST_BUFFER"].front();
  const Seen& to_device = part.spans["MEMCPY_OUT_HOST_BUFFER"].front();
  EXPECT_EQ(nccl[0].tensor, "grad");
  EXPECT_EQ(across[0].tensor, "grad [across hosts]");
  EXPECT_EQ(nccl[1].tensor, "grad [across hosts]");
  EXPECT_EQ(nccl[0].bytes, 4000);
  EXPECT_EQ(to_host.bytes, 2000);
  EXPECT_EQ(across[0].bytes, 2000);
  EXPECT_EQ(to_device.bytes, 2000);
  EXPECT_EQ(nccl[1].bytes, 4000);
  const std::int64_t error_ns = 2 * part.error_ns;
  EXPECT_LE(part.spans["DEVICE_QUEUE"].front().end_ns, nccl[0].begin_ns + error_ns);
  EXPECT_LE(nccl[0].end_ns, to_host.begin_ns + error_ns);
  EXPECT_LE(to_host.end_ns, across[0].begin_ns + error_ns);
  EXPECT_LE(across[0].end_ns, to_device.begin_ns + error_ns);
  EXPECT_LE(to_device.end_ns, nccl[1].begin_ns + error_ns);
  EXPECT_LE(nccl[1].end_ns, part.spans["DEVICE_WAIT"].front().end_ns + error_ns);
}

}  // namespace
}  // namespace ringtune
