// Allgather and alltoall from GPU to GPU, several GPUs of a process and several streams of one, on the fake NCCL.
#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "gathered.h"
#include "nccl_job.h"
#include "thrown.h"

namespace ringtune {
namespace {

using testing_support::delivered;
using testing_support::DeviceArray;
using testing_support::FakeGpu;
using testing_support::FakeNccl;
using testing_support::gather_of;
using testing_support::message_of;
using testing_support::NcclJob;
using testing_support::RankBytes;

using Ints = std::vector<std::int32_t>;
using Rows = std::vector<std::int64_t>;

TEST(NcclGather, AlltoallDealsOutRowsByNumbersThatOnlyTheSendersKnow) {
  constexpr int kRanks = 3;
  NcclJob job(kRanks);
  job.on_every_rank([&](int rank) {
    std::mt19937 random(7);  // the same on all ranks
    for (int round = 0; round < 10; ++round) {
      std::vector<Rows> splits(kRanks, Rows(kRanks));
      for (int from = 0; from < kRanks; ++from) {
        for (int to = 0; to < kRanks; ++to) {
          // A member keeps something: the fake takes a group without a call for none.
          splits[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)] = random() % 4 + (from == to ? 1 : 0);
        }
      }
      const Rows& own = splits[static_cast<std::size_t>(rank)];
      Ints values;
      for (std::size_t to = 0; to < kRanks; ++to) {
        values.insert(values.end(), 2 * static_cast<std::size_t>(own[to]), 100 * rank + static_cast<int>(to) + round);
      }
      DeviceArray<std::int32_t> input(job.device(rank), values);
      Submission submission = gather_of(job, rank, "t", input, {static_cast<std::int64_t>(values.size() / 2), 2});
      submission.request.kind = CollectiveKind::kAlltoall;
      submission.splits = own;
      const Ticket ticket = job[rank].submit(std::move(submission));
      ASSERT_TRUE(job[rank].wait(ticket, Deadline::after(20'000'000'000)));
      Rows come;
      Ints expected;
      for (std::size_t from = 0; from < kRanks; ++from) {
        come.push_back(splits[from][static_cast<std::size_t>(rank)]);
        expected.insert(expected.end(), 2 * static_cast<std::size_t>(come.back()),
                        100 * static_cast<int>(from) + rank + round);
      }
      EXPECT_EQ(job[rank].gathered_on_device(ticket).splits, come);
      EXPECT_EQ(delivered(job, rank, ticket), expected);
    }
  });
  EXPECT_EQ(NcclJob::copies(), 0);
}

TEST(NcclGather, AnyDtypeGoesAsBytes) {
  NcclJob job(2);
  job.on_every_rank([&](int rank) {
    for (const DType dtype : {DType::kBool, DType::kInt16, DType::kBfloat16, DType::kFloat64}) {
      const std::vector<std::byte> mine(3 * size_of(dtype), std::byte(rank + 1));
      RankBytes input(job.device(rank), mine);
      Submission submission = job.of(rank, "t" + std::string(name_of(dtype)), input.data(), nullptr, dtype, {3});
      submission.request.kind = CollectiveKind::kAllgather;
      const Ticket ticket = job[rank].submit(std::move(submission));
      ASSERT_TRUE(job[rank].wait(ticket, Deadline::after(20'000'000'000)));
      RankBytes result(job.device(rank), std::vector<std::byte>(2 * mine.size()));
      job[rank].deliver(ticket, result.data(), job.stream(rank));
      job[rank].release(ticket);
      std::vector<std::byte> expected(mine.size(), std::byte(1));
      expected.insert(expected.end(), mine.size(), std::byte(2));
      EXPECT_EQ(result.values(job.stream(rank)), expected);
    }
  });
  EXPECT_EQ(NcclJob::copies(), 0);
}

TEST(NcclGather, WhatNobodyTookIsUsedAgainBehindItsLastUse) {
  NcclJob job(2);
  int allocations = 0;
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> tensor(job.device(rank), Ints(2000, 0));
    std::vector<std::unique_ptr<DeviceArray<std::int32_t>>> results;
    for (int round = 0; round < 10; ++round) {
      tensor.fill(job.stream(rank), round);
      const Ticket ticket = job[rank].submit(gather_of(job, rank, "t", tensor, {2000}));
      ASSERT_TRUE(job[rank].wait(ticket, Deadline::after(20'000'000'000)));
      if (round % 2 == 0) {
        // Nothing waits for the copies before all are asked for: a block that was filled too early would show.
        results.push_back(std::make_unique<DeviceArray<std::int32_t>>(job.device(rank), Ints(4000, -1)));
        job[rank].deliver(ticket, results.back()->data(), job.stream(rank));
      }
      job[rank].join_stream(ticket, job.stream(rank));
      job[rank].release(ticket);
      if (rank == 0 && round == 0) allocations = FakeGpu::calls("cuMemAlloc_v2");
    }
    for (std::size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(results[i]->values(job.stream(rank)), Ints(4000, 2 * static_cast<int>(i)));
    }
  });
  EXPECT_LE(FakeGpu::calls("cuMemAlloc_v2") - allocations, 2 * 4 + 3)
      << "the program's own, and the other rank's first";
}

TEST(NcclGather, ARankWithoutNcclMakesTheOthersStage) {
  NcclJob job(2, [](RuntimeOptions& options) {
    if (options.rank == 1) options.nccl_libraries.clear();
  });
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> tensor(job.device(rank), {rank, rank + 1});
    EXPECT_EQ(delivered(job, rank, job[rank].submit(gather_of(job, rank, "t", tensor, {2}))), (Ints{0, 1, 1, 2}));
    Submission submission = gather_of(job, rank, "all", tensor, {2});
    submission.request.kind = CollectiveKind::kAlltoall;
    EXPECT_EQ(delivered(job, rank, job[rank].submit(std::move(submission))), rank == 0 ? (Ints{0, 1}) : (Ints{1, 2}));
  });
  EXPECT_EQ(FakeNccl::calls("ncclAllGather") + FakeNccl::calls("ncclSend"), 0);
}

TEST(NcclGather, DeviceMemoryThatCannotBeHadEndsTheJobAndSaysSo) {
  NcclJob job(2);
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> tensor(job.device(rank), {rank});
    (void)delivered(job, rank, job[rank].submit(gather_of(job, rank, "first", tensor, {1})));
  });
  DeviceArray<std::int32_t> large(job.device(0), Ints(3 << 20, 1));
  DeviceArray<std::int32_t> other(job.device(1), Ints(3 << 20, 1));
  FakeGpu::fail("cuMemAlloc_v2", 0, 2);
  job.on_every_rank([&](int rank) {
    // What the other rank has in its stream ends with a result that means nothing; its next call is refused.
    const std::string message = message_of<Error>([&] {
      for (int i = 0; i < 1000; ++i) {
        (void)delivered(job, rank, job[rank].submit(gather_of(job, rank, "t", rank == 0 ? large : other, {3 << 20})));
      }
    });
    EXPECT_NE(message.find("cuMemAlloc failed"), std::string::npos) << message;
  });
}

TEST(NcclGather, GroupsRunWhenAllOfTheirTensorsAreReady) {
  NcclJob job(2);
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> first(job.device(rank), {rank});
    DeviceArray<std::int32_t> second(job.device(rank), {rank + 5, rank + 6});
    for (int round = 0; round < 6; ++round) {
      std::vector<Ticket> tickets;
      for (DeviceArray<std::int32_t>* const tensor : {&first, &second}) {
        Submission submission =
            gather_of(job, rank, tensor == &first ? "a" : "b", *tensor, {static_cast<std::int64_t>(tensor->size())});
        submission.request.group = "pair";
        submission.request.group_size = 2;
        tickets.push_back(job[rank].submit(std::move(submission)));
      }
      EXPECT_EQ(delivered(job, rank, tickets[0]), (Ints{0, 1}));
      EXPECT_EQ(delivered(job, rank, tickets[1]), (Ints{5, 6, 6, 7}));
    }
  });
  EXPECT_EQ(NcclJob::copies(), 0);
}

TEST(NcclGather, ResultsThatNobodyTookLeaveNothing) {
  NcclJob job(2);
  DeviceArray<std::int32_t> first(job.device(0), {1});
  DeviceArray<std::int32_t> second(job.device(1), {2});
  const int own = FakeGpu::calls("cuMemAlloc_v2") - FakeGpu::calls("cuMemFree_v2");
  job.on_every_rank([&](int rank) {
    const Ticket taken = job[rank].submit(gather_of(job, rank, "waited for", rank == 0 ? first : second, {1}));
    ASSERT_TRUE(job[rank].wait(taken, Deadline::after(20'000'000'000)));
    job[rank].release(job[rank].submit(gather_of(job, rank, "let go", rank == 0 ? first : second, {1})));
    (void)job[rank].submit(gather_of(job, rank, "left", rank == 0 ? first : second, {1}));
  });
  job.end();
  EXPECT_EQ(FakeGpu::calls("cuMemAlloc_v2") - FakeGpu::calls("cuMemFree_v2"), own);
}

/// Tensors of each rank on two GPUs of its own, which it comes to use in this order.
void run_on_two_gpus(NcclJob& job, const std::function<int(int rank, int turn)>& gpu_of, const char* name) {
  job.on_every_rank([&](int rank) {
    for (int turn = 0; turn < 2; ++turn) {
      const CudaDevice device(FakeGpu::driver(), gpu_of(rank, turn));
      std::optional<CudaStream> stream;
      {
        const CudaDevice::Current current(device);
        stream.emplace(device);
      }
      DeviceArray<std::int32_t> tensor(device, Ints(50, 0));
      for (int round = 1; round <= 5; ++round) {
        tensor.fill(stream->handle(), round + rank);
        Submission submission = job.of(rank, name + std::to_string(turn), tensor, tensor);
        submission.device = DevicePlace{device.ordinal(), stream->handle()};
        const Ticket ticket = job[rank].submit(std::move(submission));
        ASSERT_TRUE(job[rank].wait(ticket, Deadline::after(20'000'000'000)));
        job[rank].join_stream(ticket, stream->handle());
        job[rank].release(ticket);
        EXPECT_EQ(tensor.values(stream->handle()), Ints(50, 2 * round + 1));
      }
      const CudaDevice::Current current(device);
      stream.reset();
    }
  });
}

TEST(NcclGather, ASecondGpuOfAProcessHasACommunicatorOfItsOwn) {
  NcclJob job(2, 4);
  run_on_two_gpus(job, [](int rank, int turn) { return 2 * turn + rank; }, "t");
  EXPECT_EQ(FakeNccl::calls("ncclCommInitRankConfig"), 4);
  EXPECT_EQ(NcclJob::copies(), 0);
}

TEST(NcclGather, ABatchInOneStreamDoesNotWaitForTheOneBeforeInAnother) {
  NcclJob job(2, [](RuntimeOptions& options) { options.knobs.nccl_streams = 2; });
  std::vector<std::unique_ptr<DeviceArray<std::int32_t>>> late;
  std::vector<Ticket> tickets(2);
  for (int rank = 0; rank < 2; ++rank) {
    late.push_back(std::make_unique<DeviceArray<std::int32_t>>(job.device(rank), Ints(8, 0)));
  }
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t>& first = *late[static_cast<std::size_t>(rank)];
    Ticket& ticket = tickets[static_cast<std::size_t>(rank)];
    FakeGpu::hold(job.stream(rank));
    first.fill(job.stream(rank), rank + 1);
    ticket = job[rank].submit(job.of(rank, "late", first, first));
    ASSERT_TRUE(job[rank].wait(ticket, Deadline::after(20'000'000'000)));  // launched: the next one is another batch
    DeviceArray<std::int32_t> second(job.device(rank), Ints(8, rank + 5));
    Submission submission = job.of(rank, "early", second, second);
    submission.device = DevicePlace{job.device(rank).ordinal(), nullptr};
    const Ticket early = job[rank].submit(std::move(submission));
    ASSERT_TRUE(job[rank].wait(early, Deadline::after(20'000'000'000)));
    job[rank].join_stream(early, nullptr);
    job[rank].release(early);
    EXPECT_EQ(second.values(nullptr), Ints(8, 11)) << "the other one is still held";
    FakeGpu::release(job.stream(rank));
    job.join(rank, ticket);
    job[rank].release(ticket);
    EXPECT_EQ(first.values(job.stream(rank)), Ints(8, 3));
  });
  EXPECT_EQ(FakeNccl::calls("ncclCommInitRankConfig"), 4);
}

TEST(NcclGather, TheNumberOfStreamsMayChangeBetweenBatches) {
  NcclJob job(2);
  EXPECT_FALSE(job[0].uses_nccl());
  for (const std::uint32_t streams : {1U, 3U, 2U, 8U}) {
    Knobs knobs = job[0].knobs();
    knobs.nccl_streams = streams;
    (void)job[0].propose_knobs(knobs);
    job.on_every_rank([&](int rank) {
      std::vector<std::unique_ptr<DeviceArray<std::int32_t>>> tensors;
      for (int i = 0; i < 6; ++i) {
        tensors.push_back(std::make_unique<DeviceArray<std::int32_t>>(job.device(rank), Ints(20, 0)));
      }
      for (int step = 0; step < 8; ++step) {
        for (int i = 0; i < 6; ++i) {
          DeviceArray<std::int32_t>& tensor = *tensors[static_cast<std::size_t>(i)];
          tensor.fill(job.stream(rank), 10 * step + i + rank);
          job.run(rank, job.of(rank, "t" + std::to_string(i), tensor, tensor));
          ASSERT_EQ(tensor.values(job.stream(rank)), Ints(20, 2 * (10 * step + i) + 1));
        }
      }
    });
    EXPECT_EQ(job[0].knobs().nccl_streams, streams);
  }
  EXPECT_TRUE(job[0].uses_nccl());
  EXPECT_LE(FakeNccl::calls("ncclCommInitRankConfig"), 2 * 8);
  EXPECT_EQ(NcclJob::copies(), 0);
  for (const std::uint32_t wrong : {0U, 9U}) {
    Knobs knobs = job[0].knobs();
    knobs.nccl_streams = wrong;
    EXPECT_EQ(message_of<InvalidArgument>([&] { (void)job[0].propose_knobs(knobs); }), "nccl_streams must be 1 to 8");
  }
}

TEST(NcclGather, RanksThatCameToUseTheirGpusInAnotherOrderStage) {
  NcclJob job(2, 4);
  // Tensors of both GPUs in flight under names of their own: "here" is on the first GPU of rank 0, the second of
  // rank 1.
  job.on_every_rank([&](int rank) {
    const CudaDevice first(FakeGpu::driver(), rank);
    const CudaDevice second(FakeGpu::driver(), 2 + rank);
    DeviceArray<std::int32_t> here(rank == 0 ? first : second, Ints(5, rank + 1));
    DeviceArray<std::int32_t> there(rank == 0 ? second : first, Ints(5, rank + 3));
    Submission one = job.of(rank, "here", here, here);
    one.device = DevicePlace{(rank == 0 ? first : second).ordinal(), nullptr};
    Submission other = job.of(rank, "there", there, there);
    other.device = DevicePlace{(rank == 0 ? second : first).ordinal(), nullptr};
    // Rank 1 uses "there" first.
    const Ticket a = job[rank].submit(rank == 0 ? one : other);
    const Ticket b = job[rank].submit(rank == 0 ? other : one);
    for (const Ticket ticket : {a, b}) {
      ASSERT_TRUE(job[rank].wait(ticket, Deadline::after(20'000'000'000)));
      job[rank].join_stream(ticket, nullptr);
      job[rank].release(ticket);
    }
    EXPECT_EQ(here.values(nullptr), Ints(5, 3));
    EXPECT_EQ(there.values(nullptr), Ints(5, 7));
  });
  EXPECT_EQ(FakeNccl::calls("ncclCommInitRankConfig"), 0);
}

}  // namespace
}  // namespace ringtune
