// What goes wrong in a ring between GPUs: told on every rank, nothing hangs in a stream, and nothing is left.
#include <gtest/gtest.h>

#include <array>
#include <atomic>

#include "base/error.h"
#include "ring_job.h"
#include "warm_up.h"

namespace ringtune {
namespace {

using testing_support::DeviceArray;
using testing_support::FakeGpu;
using testing_support::RingJob;
using testing_support::warm_up;

using Ints = std::vector<std::int32_t>;

using Tensor = DeviceArray<std::int32_t>;

/// A tensor of each rank, which lives as long as streams may write into it.
std::vector<std::unique_ptr<Tensor>> tensors_of(RingJob& job, int ranks, std::size_t count) {
  std::vector<std::unique_ptr<Tensor>> tensors;
  for (int rank = 0; rank < ranks; ++rank) {
    tensors.push_back(std::make_unique<Tensor>(job.device(rank), Ints(count, 1)));
  }
  return tensors;
}

/// The next operations of a rank: some may go through before one is refused.
void go_on(RingJob& job, int rank, Tensor& tensor) {
  for (int i = 0; i < 1000; ++i) job.run(rank, job.of(rank, "next", tensor, tensor));
}

class RingFault : public testing::TestWithParam<const char*> {};

TEST_P(RingFault, EndsTheJobOnAllRanksAndNothingHangsInAStream) {
  RingJob job(3);
  warm_up(job);
  const auto tensors = tensors_of(job, 3, 8);
  FakeGpu::fail(GetParam(), 4, 999);  // on the rank that comes to it, in the middle of a batch
  std::atomic<int> told = 0;
  job.on_every_rank([&](int rank) {
    Tensor& tensor = *tensors[static_cast<std::size_t>(rank)];
    try {
      go_on(job, rank, tensor);
    } catch (const DeviceError&) {
      ++told;
    } catch (const PeerLost&) {
      ++told;
    }
    (void)tensor.values(job.stream(rank));  // returns
  });
  EXPECT_EQ(told, 3);
  job.end();
}

INSTANTIATE_TEST_SUITE_P(Calls, RingFault,
                         testing::Values("cuLaunchKernel", "cuStreamWaitValue32_v2", "cuStreamWriteValue32_v2"));

TEST(RingFailures, WhoWaitsForAResultThatNeverComesIsTold) {
  RingJob job(2);
  warm_up(job);
  const auto tensors = tensors_of(job, 2, 8);
  const auto others = tensors_of(job, 2, 8);
  FakeGpu::hold(job.stream(1));
  tensors[1]->fill(job.stream(1), 2);  // the data of rank 1 never come
  std::array<Ticket, 2> tickets{};
  job.on_every_rank([&](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    tickets[at] = job[rank].submit(job.of(rank, "t", *tensors[at], *tensors[at]));
    ASSERT_TRUE(job[rank].wait(tickets[at], Deadline::after(20'000'000'000)));
  });
  FakeGpu::fail("cuStreamWriteValue32_v2", 0, 999);
  job.on_every_rank([&](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    EXPECT_THROW(go_on(job, rank, *others[at]), Error);
    if (rank == 0) {
      EXPECT_THROW(job[0].join_stream(tickets[0], job.stream(0)), Error);
    }
    job[rank].release(tickets[at]);
  });
  FakeGpu::release(job.stream(1));
  job.end();  // what is in streams writes to the tensors
  for (int rank = 0; rank < 2; ++rank) (void)tensors[static_cast<std::size_t>(rank)]->values(job.stream(rank));
}

TEST(RingFailures, NothingIsLeftOfAJobNorOfAProcessSet) {
  FakeGpu gpu;
  {
    RingJob job(3);
    warm_up(job);
    job.on_every_rank([&](int rank) {
      const Ticket added = job[rank].add_process_set({0, 1});
      ASSERT_TRUE(job[rank].wait(added, Deadline::after(20'000'000'000)));
      const auto set = static_cast<std::uint32_t>(job[rank].operation(added)->number);
      job[rank].release(added);
      if (rank != 2) {
        DeviceArray<std::int32_t> tensor(job.device(rank), Ints(8, 1));
        Submission submission = job.of(rank, "t", tensor, tensor);
        submission.request.process_set = set;
        job.run(rank, std::move(submission));
        (void)tensor.values(job.stream(rank));
      }
      testing_support::finish(job[rank], job[rank].remove_process_set(set));
    });
  }
  EXPECT_EQ(FakeGpu::alive(), 0);
}

}  // namespace
}  // namespace ringtune
