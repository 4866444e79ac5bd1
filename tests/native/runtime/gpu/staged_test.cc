// Tensors in GPUs' memory through whole runtimes, on the fake driver: nothing is done there before somebody waits for
// it, so whoever forgets to wait finds what was there before.
#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "runtime/gpu/host_staged_path.h"
#include "staged_job.h"
#include "thrown.h"

namespace ringtune {
namespace {

using testing_support::DeviceArray;
using testing_support::DeviceJob;
using testing_support::FakeGpu;
using testing_support::message_of;
using testing_support::patient;

using Ints = std::vector<std::int32_t>;
using Floats = std::vector<float>;

TEST(HostStaged, AllreduceInPlaceScalesAndAverages) {
  DeviceJob job(2);
  job.on_every_rank([&](int rank) {
    DeviceArray<float> tensor(job.device(), Floats(77, 0.0F));
    tensor.fill(job.stream(rank), rank == 0 ? 2.0F : 6.0F);
    Submission submission = job.of(rank, "t", tensor, tensor);
    submission.request.op = ReduceOp::kAverage;
    submission.request.prescale = 0.5;
    submission.request.postscale = 3.0;
    EXPECT_EQ(job.result(rank, job[rank].submit(std::move(submission)), tensor), Floats(77, 6.0F));
  });
}

TEST(HostStaged, ARankAloneCopiesNothingThatIsItsOwnResult) {
  DeviceJob job(1);
  DeviceArray<float> tensor(job.device(), Floats(10, 1.5F));
  tensor.fill(job.stream(0), 2.5F);
  Submission average = job.of(0, "t", tensor, tensor);
  average.request.op = ReduceOp::kAverage;
  EXPECT_EQ(job.result(0, job[0].submit(std::move(average)), tensor), Floats(10, 2.5F));
  EXPECT_EQ(FakeGpu::calls("cuMemcpyDtoHAsync_v2") + FakeGpu::calls("cuMemcpyHtoDAsync_v2"), 0);
  Submission scaled = job.of(0, "t", tensor, tensor);
  scaled.request.postscale = 2.0;
  EXPECT_EQ(job.result(0, job[0].submit(std::move(scaled)), tensor), Floats(10, 5.0F));
}

TEST(HostStaged, ATensorMayTravelAsSixteenBits) {
  DeviceJob job(2);
  job.on_every_rank([&](int rank) {
    DeviceArray<float> tensor(job.device(), Floats(10, 1.5F));
    Submission submission = job.of(rank, "t", tensor, tensor);
    submission.request.wire = DType::kBfloat16;
    EXPECT_EQ(job.result(rank, job[rank].submit(std::move(submission)), tensor), Floats(10, 3.0F));
  });
}

TEST(HostStaged, SubmittingBlocksNobodyThoughTheGpuIsBusy) {
  DeviceJob job(2);
  std::vector<std::unique_ptr<DeviceArray<std::int32_t>>> tensors;
  for (int rank = 0; rank < 2; ++rank) {
    tensors.push_back(std::make_unique<DeviceArray<std::int32_t>>(job.device(), Ints(8, 0)));
  }
  std::vector<Ticket> tickets;
  for (int rank = 0; rank < 2; ++rank) {  // one thread: a call that blocked would never come back
    DeviceArray<std::int32_t>& tensor = *tensors[static_cast<std::size_t>(rank)];
    FakeGpu::hold(job.stream(rank));
    tensor.fill(job.stream(rank), 4);
    tickets.push_back(job[rank].submit(job.of(rank, "t", tensor, tensor)));
    EXPECT_FALSE(job[rank].poll(tickets.back()));
  }
  EXPECT_FALSE(job[0].wait(tickets[0], Deadline::after(1'000'000)));
  for (int rank = 0; rank < 2; ++rank) FakeGpu::release(job.stream(rank));
  job.on_every_rank([&](int rank) {
    const auto index = static_cast<std::size_t>(rank);
    EXPECT_EQ(job.result(rank, tickets[index], *tensors[index]), Ints(8, 8));
  });
}

/// Steps of many tensors, as training has them; each step's values differ.
void run_steps(DeviceJob& job, int steps) {
  constexpr int kTensors = 25;
  job.on_every_rank([&](int rank) {
    std::vector<std::unique_ptr<DeviceArray<float>>> tensors;
    for (int i = 0; i < kTensors; ++i) {
      tensors.push_back(
          std::make_unique<DeviceArray<float>>(job.device(), Floats(static_cast<std::size_t>(7 * i + 1))));
    }
    for (int step = 0; step < steps; ++step) {
      std::vector<Ticket> tickets;
      for (int i = 0; i < kTensors; ++i) {
        DeviceArray<float>& tensor = *tensors[static_cast<std::size_t>(i)];
        tensor.fill(job.stream(rank), static_cast<float>(step + i + 10 * rank));
        tickets.push_back(job[rank].submit(job.of(rank, "t" + std::to_string(i), tensor, tensor)));
      }
      for (int i = 0; i < kTensors; ++i) {
        const auto index = static_cast<std::size_t>(i);
        ASSERT_EQ(job.result(rank, tickets[index], *tensors[index]),
                  Floats(tensors[index]->size(), static_cast<float>(2 * (step + i) + 10)))
            << "step " << step << ", tensor " << i;
      }
    }
  });
}

TEST(HostStaged, StepsThatRepeatThemselvesFollowAScheduleAndPinNothingMore) {
  DeviceJob job(2, patient);
  run_steps(job, 2);
  const int pinned = FakeGpu::calls("cuMemHostAlloc");
  const std::uint64_t messages = job[0].counters().control_messages;
  run_steps(job, 30);
  EXPECT_EQ(FakeGpu::calls("cuMemHostAlloc"), pinned);
  EXPECT_LT(job[0].counters().control_messages - messages, 30U * 25U) << "a message for every tensor";
}

TEST(HostStaged, PinnedMemoryIsNotUsedAgainBeforeItWasCopiedBack) {
  DeviceJob job(1);
  DeviceArray<float> first(job.device(), Floats(10, 1.0F));
  DeviceArray<float> second(job.device(), Floats(10, 5.0F));
  for (DeviceArray<float>* const tensor : {&first, &second}) {
    Submission submission = job.of(0, "t", *tensor, *tensor);
    submission.request.postscale = 2.0;
    const Ticket ticket = job[0].submit(std::move(submission));
    job.join(0, ticket);  // nobody looks at the result yet, so the fake has not copied it
    job[0].release(ticket);
  }
  EXPECT_EQ(first.values(job.stream(0)), Floats(10, 2.0F));
  EXPECT_EQ(second.values(job.stream(0)), Floats(10, 10.0F));
}

TEST(HostStaged, AGpuThatDoesEverythingAtOnceGivesTheSame) {
  DeviceJob job(2);
  FakeGpu::set_eager();
  run_steps(job, 5);
}

constexpr std::size_t kPart = (8 << 20) / sizeof(std::int32_t);  // as gpu_part_bytes is by default
constexpr std::size_t kParts = 3;
constexpr std::size_t kLarge = (kParts - 1) * kPart + 1000;

TEST(HostStaged, ALargeTensorGoesInParts) {
  DeviceJob job(2);
  job.on_every_rank([&](int rank) {
    Ints numbers(kLarge);
    std::iota(numbers.begin(), numbers.end(), rank);
    DeviceArray<std::int32_t> tensor(job.device(), numbers);
    DeviceArray<std::int32_t> sum(job.device(), Ints(kLarge, 0));
    for (int round = 0; round < 3; ++round) {
      const Ints found = job.result(rank, job[rank].submit(job.of(rank, "t", tensor, sum)), sum);
      for (std::size_t i = 0; i < kLarge; ++i) ASSERT_EQ(found[i], 2 * static_cast<std::int32_t>(i) + 1) << i;
    }
    EXPECT_EQ(job[rank].traffic(CollectiveKind::kAllreduce).operations, 3 * kParts);
    EXPECT_EQ(job[rank].traffic(CollectiveKind::kAllreduce).bytes, 3 * 4 * kLarge);
  });
}

TEST(HostStaged, PartsAreAsLargeAsTheJobSays) {
  DeviceJob job(2, [](RuntimeOptions& options) { options.gpu_part_bytes = 4096; });
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> tensor(job.device(), Ints(3000, rank + 1));
    EXPECT_EQ(job.result(rank, job[rank].submit(job.of(rank, "t", tensor, tensor)), tensor), Ints(3000, 3));
    EXPECT_EQ(job[rank].traffic(CollectiveKind::kAllreduce).operations, 3);
  });
}

TEST(HostStaged, RanksThatDifferInALargeTensorAreToldOfTheWholeAndGoOn) {
  DeviceJob job(2);
  job.on_every_rank([&](int rank) {
    const std::size_t size = rank == 0 ? kLarge : kPart + 1;
    DeviceArray<std::int32_t> tensor(job.device(), Ints(size, 1));
    const Ticket ticket = job[rank].submit(job.of(rank, "t", tensor, tensor));
    const std::string message = message_of<Mismatch>([&] { job.join(rank, ticket); });
    EXPECT_EQ(message, "Mismatched ALLREDUCE tensor shapes: One rank had shape [" + std::to_string(kLarge) +
                           "], but another rank had shape [" + std::to_string(kPart + 1) + "]. Tensor 't': shape [" +
                           std::to_string(kLarge) + "] on rank 0; shape [" + std::to_string(kPart + 1) +
                           "] on rank 1. Submit the same shape on every rank.");
    job[rank].release(ticket);
    DeviceArray<std::int32_t> other(job.device(), Ints(3, 1));
    EXPECT_EQ(job.result(rank, job[rank].submit(job.of(rank, "t", other, other)), other), Ints(3, 2));
  });
}

TEST(HostStaged, OneRankOnTheCpuIsAMismatchOnAll) {
  DeviceJob job(2);
  job.on_every_rank([&](int rank) {
    DeviceArray<float> tensor(job.device(), Floats(3, 1.0F));
    Floats host(3, 1.0F);
    Submission submission = rank == 0 ? testing_support::allreduce_of("t", host) : job.of(rank, "t", tensor, tensor);
    const Ticket ticket = job[rank].submit(std::move(submission));
    EXPECT_EQ(message_of<Mismatch>([&] { (void)job[rank].wait(ticket, Deadline::after(20'000'000'000)); }),
              "Mismatched ALLREDUCE CPU/GPU device selection: One rank had device CPU, but another rank had device "
              "GPU. Tensor 't': device CPU on rank 0; device GPU on rank 1. Keep the tensor on the CPU of every rank, "
              "or on a GPU of every rank.");
    job[rank].release(ticket);
  });
}

TEST(HostStaged, TheSameNameMayBeOnTheCpuNext) {
  DeviceJob job(2);
  job.on_every_rank([&](int rank) {
    for (int round = 0; round < 6; ++round) {
      DeviceArray<float> tensor(job.device(), Floats(3, 1.0F));
      EXPECT_EQ(job.result(rank, job[rank].submit(job.of(rank, "t", tensor, tensor)), tensor), Floats(3, 2.0F));
      Floats host(3, 4.0F);
      testing_support::finish(job[rank], job[rank].submit(testing_support::allreduce_of("t", host)));
      EXPECT_EQ(host, Floats(3, 8.0F));
    }
  });
}

TEST(HostStaged, AGroupRunsWhenAllOfItIsThere) {
  DeviceJob job(2);
  job.on_every_rank([&](int rank) {
    std::vector<std::unique_ptr<DeviceArray<float>>> tensors;
    std::vector<Ticket> tickets;
    for (int i = 0; i < 3; ++i) {
      tensors.push_back(std::make_unique<DeviceArray<float>>(job.device(), Floats(5, static_cast<float>(i))));
      Submission submission = job.of(rank, "g" + std::to_string(i), *tensors.back(), *tensors.back());
      submission.request.group = "g";
      submission.request.group_size = 3;
      tickets.push_back(job[rank].submit(std::move(submission)));
      if (i == 1) {
        EXPECT_FALSE(job[rank].wait(tickets[0], Deadline::after(5'000'000)));
      }
    }
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(job.result(rank, tickets[i], *tensors[i]), Floats(5, 2.0F * static_cast<float>(i)));
    }
  });
}

TEST(HostStaged, BroadcastBringsTheRootsTensorAndSendsNoOthers) {
  DeviceJob job(3);
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> tensor(job.device(), Ints(9, -1));
    tensor.fill(job.stream(rank), 100 + rank);
    Submission submission = job.of(rank, "t", tensor, tensor);
    submission.request.kind = CollectiveKind::kBroadcast;
    submission.request.root = 1;
    EXPECT_EQ(job.result(rank, job[rank].submit(std::move(submission)), tensor), Ints(9, 101));
  });
  EXPECT_EQ(FakeGpu::calls("cuMemcpyDtoHAsync_v2"), 1);
  EXPECT_EQ(FakeGpu::calls("cuMemcpyHtoDAsync_v2"), 2);
}

/// Takes the result of an allgather or alltoall to the device, as a program does that now knows its size.
Ints delivered(DeviceJob& job, int rank, Ticket ticket) {
  EXPECT_TRUE(job[rank].wait(ticket, Deadline::after(20'000'000'000)));
  const GatheredOnDevice found = job[rank].gathered_on_device(ticket);
  DeviceArray<std::int32_t> result(job.device(), Ints(static_cast<std::size_t>(found.shape.front()), -1));
  job[rank].deliver(ticket, result.data(), job.stream(rank));
  job[rank].release(ticket);
  return result.values(job.stream(rank));
}

TEST(HostStaged, AllgatherJoinsRowsOfAllRanks) {
  DeviceJob job(3);
  job.on_every_rank([&](int rank) {
    for (int round = 0; round < 2; ++round) {
      DeviceArray<std::int32_t> rows(job.device(), Ints(static_cast<std::size_t>(rank), 0));
      rows.fill(job.stream(rank), 10 * round + rank);
      Submission submission = job.of(rank, "t", rows, rows);
      submission.request.kind = CollectiveKind::kAllgather;
      submission.output = nullptr;
      EXPECT_EQ(delivered(job, rank, job[rank].submit(std::move(submission))),
                (Ints{10 * round + 1, 10 * round + 2, 10 * round + 2}));
    }
  });
}

TEST(HostStaged, AlltoallDealsOutRows) {
  DeviceJob job(2);
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> rows(job.device(), Ints{10 * rank, 10 * rank + 1, 10 * rank + 2});
    Submission submission = job.of(rank, "t", rows, rows);
    submission.request.kind = CollectiveKind::kAlltoall;
    submission.output = nullptr;
    submission.splits = {1, 2};
    const Ticket ticket = job[rank].submit(std::move(submission));
    ASSERT_TRUE(job[rank].wait(ticket, Deadline::after(20'000'000'000)));
    EXPECT_EQ(job[rank].gathered_on_device(ticket).splits, (std::vector<std::int64_t>(2, rank + 1)));
    EXPECT_EQ(delivered(job, rank, ticket), rank == 0 ? (Ints{0, 10}) : (Ints{1, 2, 11, 12}));
  });
}

TEST(HostStaged, ReducescatterGivesEveryRankItsRows) {
  DeviceJob job(2);
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> rows(job.device(), Ints{1, 2, 3 + rank});
    DeviceArray<std::int32_t> own(job.device(), Ints(rank == 0 ? 2 : 1, -1));
    Submission submission = job.of(rank, "t", rows, own);
    submission.request.kind = CollectiveKind::kReducescatter;
    EXPECT_EQ(job.result(rank, job[rank].submit(std::move(submission)), own), rank == 0 ? (Ints{2, 4}) : (Ints{7}));
  });
}

TEST(HostStaged, AdasumOfOrthogonalTensorsIsTheirSum) {
  DeviceJob job(2);
  job.on_every_rank([&](int rank) {
    DeviceArray<float> tensor(job.device(), rank == 0 ? Floats{3, 0} : Floats{0, 4});
    Submission submission = job.of(rank, "t", tensor, tensor);
    submission.request.op = ReduceOp::kAdasum;
    EXPECT_EQ(job.result(rank, job[rank].submit(std::move(submission)), tensor), (Floats{3, 4}));
  });
}

TEST(HostStaged, TensorsOfTwoGpusDoNotShareABatch) {
  DeviceJob job(2);
  const CudaDevice second(FakeGpu::driver(), 1);
  job.on_every_rank([&](int rank) {
    DeviceArray<float> here(job.device(), Floats(4, 1.0F));
    DeviceArray<float> there(second, Floats(4, 2.0F));
    std::vector<Ticket> tickets;
    for (int i = 0; i < 2; ++i) {
      Submission submission = job.of(rank, "t" + std::to_string(i), i == 0 ? here : there, i == 0 ? here : there);
      submission.device = DevicePlace{i, nullptr};
      submission.request.group = "both";
      submission.request.group_size = 2;
      tickets.push_back(job[rank].submit(std::move(submission)));
    }
    for (const Ticket ticket : tickets) ASSERT_TRUE(job[rank].wait(ticket, Deadline::after(20'000'000'000)));
    for (const Ticket ticket : tickets) job[rank].join_stream(ticket, nullptr);
    EXPECT_EQ(here.values(nullptr), Floats(4, 2.0F));
    EXPECT_EQ(there.values(nullptr), Floats(4, 4.0F));
    EXPECT_EQ(job[rank].counters().batches, 2U);
    for (const Ticket ticket : tickets) job[rank].release(ticket);
  });
}

}  // namespace
}  // namespace ringtune
