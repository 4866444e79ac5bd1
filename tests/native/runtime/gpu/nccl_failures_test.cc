// What goes wrong between GPUs: told on every rank, nothing hangs in a stream, and nothing is left.
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "base/error.h"
#include "nccl_job.h"
#include "thrown.h"
#include "warm_up.h"

namespace ringtune {
namespace {

using testing_support::DeviceArray;
using testing_support::FakeNccl;
using testing_support::message_of;
using testing_support::NcclJob;
using testing_support::warm_up;

using Ints = std::vector<std::int32_t>;

/// The next operations of a rank: some may go through before one is refused.
void go_on(NcclJob& job, int rank) {
  for (int i = 0; i < 1000; ++i) {
    DeviceArray<std::int32_t> tensor(job.device(rank), Ints(8, 1));
    job.run(rank, job.of(rank, "next", tensor, tensor));
  }
}

template <typename E>
std::string refusal(NcclJob& job, int rank) {
  return message_of<E>([&] { go_on(job, rank); });
}

/// Has every rank sum a tensor, and returns those when all are under way: nobody has waited for its stream.
std::vector<std::unique_ptr<DeviceArray<std::int32_t>>> under_way(NcclJob& job) {
  std::vector<std::unique_ptr<DeviceArray<std::int32_t>>> tensors;
  for (int rank = 0; rank < 2; ++rank) {
    tensors.push_back(std::make_unique<DeviceArray<std::int32_t>>(job.device(rank), Ints(8, 1)));
  }
  job.on_every_rank([&](int rank) {
    const DeviceArray<std::int32_t>& tensor = *tensors[static_cast<std::size_t>(rank)];
    job.run(rank, job.of(rank, "t", tensor, tensor));
  });
  return tensors;
}

TEST(NcclFailures, AnErrorInAStreamEndsTheJobOnAllRanksAndSaysWhere) {
  NcclJob job(2);
  warm_up(job);
  const auto tensors = under_way(job);
  FakeNccl::break_rank(0, 3);
  job.on_every_rank([&](int rank) {
    const std::string message = rank == 0 ? refusal<DeviceError>(job, rank) : refusal<PeerLost>(job, rank);
    EXPECT_NE(message.find("an operation of NCCL failed: internal error"), std::string::npos) << message;
  });
  job.end();
  EXPECT_EQ(FakeNccl::aborted(), 2);
}

TEST(NcclFailures, APeerThatIsLostFreesWhatWaitsForItInStreams) {
  NcclJob job(2);
  warm_up(job);
  FakeNccl::hang();
  const auto tensors = under_way(job);
  FakeNccl::break_rank(1, 3);  // it ends by an error of its own, when both streams wait
  job.on_every_rank([&](int rank) {
    (void)tensors[static_cast<std::size_t>(rank)]->values(job.stream(rank));  // returns on both
  });
  job.end();
  EXPECT_EQ(FakeNccl::aborted(), 2);
}

TEST(NcclFailures, WhoWaitsForAResultThatNeverCameIsTold) {
  NcclJob job(2);
  warm_up(job);
  FakeNccl::hang();
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> tensor(job.device(rank), Ints(8, 1));
    const Ticket ticket = job[rank].submit(job.of(rank, "t", tensor, tensor));
    ASSERT_TRUE(job[rank].wait(ticket, Deadline::after(20'000'000'000)));
    FakeNccl::break_rank(rank, 3);
    while (FakeNccl::aborted() < 2) std::this_thread::yield();
    EXPECT_THROW(job[rank].join_stream(ticket, job.stream(rank)), Error);
    job[rank].release(ticket);
  });
}

/// A call of NCCL that fails on one rank.
struct Fault {
  const char* call;
  bool connecting;  // before the first batch: then all ranks stage
};
void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.call; }

class NcclFault : public testing::TestWithParam<Fault> {};

TEST_P(NcclFault, IsToldOrGoneAroundOnAllRanks) {
  const Fault fault = GetParam();
  NcclJob job(2, [](RuntimeOptions& options) { options.connect_timeout_ns = 4'000'000'000; });
  if (!fault.connecting) warm_up(job);
  FakeNccl::fail(fault.call, 0, 3);
  job.on_every_rank([&](int rank) {
    if (fault.connecting) {
      DeviceArray<std::int32_t> tensor(job.device(rank), Ints(8, rank + 1));
      EXPECT_NO_THROW(job.run(rank, job.of(rank, "t", tensor, tensor)));
      EXPECT_EQ(tensor.values(job.stream(rank)), Ints(8, 3));
    } else {
      // A peer may have its stream wait for a result before it learns that none comes: it gets the error by what it
      // does next.
      EXPECT_THROW(go_on(job, rank), Error);
    }
  });
  if (fault.connecting) {
    EXPECT_EQ(NcclJob::copies(), 4);
  }
}

INSTANTIATE_TEST_SUITE_P(Calls, NcclFault,
                         testing::Values(Fault{"ncclCommInitRankConfig", true}, Fault{"ncclAllReduce", false},
                                         Fault{"ncclGroupEnd", false}));

}  // namespace
}  // namespace ringtune
