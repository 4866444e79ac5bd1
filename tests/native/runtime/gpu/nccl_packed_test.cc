// Batches of several allreduces by NCCL through whole runtimes that have kernels: one call for all of them, with the
// bits of the host, or a group of calls where a rank cannot pack.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>

#include "base/error.h"
#include "packed_job.h"

namespace ringtune {
namespace {

using testing_support::DeviceArray;
using testing_support::FakeGpu;
using testing_support::FakeNccl;
using testing_support::Inability;
using testing_support::no_compiler;
using testing_support::PackedJob;
using testing_support::patient;
using testing_support::RingJob;
using testing_support::run_group;
using testing_support::run_steps;

using Ints = std::vector<std::int32_t>;
using Tensor = DeviceArray<std::int32_t>;

/// Three tensors in one batch, `rounds` times; their data come from kernels that nobody has waited for.
void sum_groups(RingJob& job, int size, int rounds) {
  job.on_every_rank([&](int rank) {
    const std::size_t counts[] = {1000, 1, 77};
    std::vector<std::unique_ptr<Tensor>> tensors;
    for (const std::size_t count : counts)
      tensors.push_back(std::make_unique<Tensor>(job.device(rank), Ints(count, -1)));
    for (int round = 1; round <= rounds; ++round) {
      std::vector<Submission> members;
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        tensors[i]->fill(job.stream(rank), round * (rank + 1) + static_cast<int>(i));
        members.push_back(job.of(rank, "t" + std::to_string(i), *tensors[i], *tensors[i]));
      }
      run_group(job, rank, members);
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        const int sum = round * size * (size + 1) / 2 + size * static_cast<int>(i);
        EXPECT_EQ(tensors[i]->values(job.stream(rank)), Ints(counts[i], sum)) << "tensor " << i;
      }
    }
  });
  EXPECT_EQ(RingJob::staged(), 0);
}

TEST(NcclPacked, ABatchIsOneCallThatWaitsForTheKernelsBeforeItAndTheOnesAfterWaitForIt) {
  PackedJob job(3);
  sum_groups(job, 3, 4);
  EXPECT_EQ(FakeNccl::calls("ncclAllReduce"), 3 * 4);
  EXPECT_EQ(FakeGpu::calls("cuLaunchKernel"), 2 * 3 * 4) << "one to pack, one to unpack";
  EXPECT_EQ(FakeGpu::calls("cuModuleLoadData"), 3);
}

TEST(NcclPacked, ATensorAloneGoesAsItIsAndNeedsNoKernels) {
  PackedJob job(2);
  job.on_every_rank([&](int rank) {
    Tensor tensor(job.device(rank), Ints(10, rank + 1));
    job.run(rank, job.of(rank, "t", tensor, tensor));
    EXPECT_EQ(tensor.values(job.stream(rank)), Ints(10, 3));
  });
  EXPECT_EQ(FakeNccl::calls("ncclAllReduce"), 2);
  EXPECT_EQ(FakeGpu::calls("cuModuleLoadData"), 0);
}

TEST(NcclPacked, StepsFollowAScheduleAndWhatTheKernelsKnowOfABatchStaysOnTheGpu) {
  PackedJob job(2, patient);
  run_steps(job, 25, 10);
  const std::uint64_t messages = job[0].counters().control_messages;
  const int calls = FakeNccl::calls("ncclAllReduce");
  run_steps(job, 25, 30);
  EXPECT_LT(job[0].counters().control_messages - messages, 30U) << "a message for every step";
  EXPECT_LT(FakeNccl::calls("ncclAllReduce") - calls, 2 * 30 * 25 / 2) << "a call for every tensor";
  EXPECT_EQ(RingJob::staged(), 0);
}

TEST(NcclPacked, TheBufferIsUsedAgainOnlyBehindItsLastUse) {
  PackedJob job(2);
  job.on_every_rank([&](int rank) {
    constexpr int kGroups = 6;
    std::vector<std::unique_ptr<Tensor>> tensors;
    std::vector<Ticket> tickets;
    FakeGpu::hold(job.stream(rank));
    for (int i = 0; i < 2 * kGroups; ++i) {
      tensors.push_back(std::make_unique<Tensor>(job.device(rank), Ints(500, 0)));
      tensors.back()->fill(job.stream(rank), i + 100 * rank);
      Submission submission = job.of(rank, "t" + std::to_string(i), *tensors.back(), *tensors.back());
      submission.request.group = "group" + std::to_string(i / 2);
      submission.request.group_size = 2;
      tickets.push_back(job[rank].submit(std::move(submission)));
    }
    for (const Ticket ticket : tickets) {
      job.join(rank, ticket);  // nothing has begun on the GPU
      job[rank].release(ticket);
    }
    FakeGpu::release(job.stream(rank));
    for (int i = 0; i < 2 * kGroups; ++i) {
      EXPECT_EQ(tensors[static_cast<std::size_t>(i)]->values(job.stream(rank)), Ints(500, 2 * i + 100)) << i;
    }
  });
}

TEST(NcclPacked, BatchesOfAllSizesFindABufferThatIsLargeEnough) {
  PackedJob job(2);
  job.on_every_rank([&](int rank) {
    for (const std::size_t count : {std::size_t{10}, std::size_t{700'000}, std::size_t{20}, std::size_t{1'500'000}}) {
      Tensor first(job.device(rank), Ints(count, rank + 1));
      Tensor second(job.device(rank), Ints(count + 3, rank + 2));
      run_group(job, rank, {job.of(rank, "a", first, first), job.of(rank, "b", second, second)});
      EXPECT_EQ(first.values(job.stream(rank)), Ints(count, 3));
      EXPECT_EQ(second.values(job.stream(rank)), Ints(count + 3, 5));
    }
  });
  EXPECT_EQ(FakeNccl::calls("ncclAllReduce"), 2 * 4);
}

TEST(NcclPacked, EmptyTensorsOfABatchAreAgreedOnLikeAnyOther) {
  PackedJob job(2);
  job.on_every_rank([&](int rank) {
    Tensor none(job.device(rank), {});
    Tensor some(job.device(rank), Ints(5, rank + 1));
    run_group(job, rank, {job.of(rank, "a", none, none), job.of(rank, "b", some, some)});
    run_group(job, rank, {job.of(rank, "c", none, none), job.of(rank, "d", none, none)}, "empty");
    EXPECT_EQ(some.values(job.stream(rank)), Ints(5, 3));
  });
}

TEST(NcclPacked, SeveralStreamsHaveBuffersOfTheirOwn) {
  PackedJob job(2, [](RuntimeOptions& options) { options.knobs.nccl_streams = 2; });
  sum_groups(job, 2, 6);
  EXPECT_EQ(FakeNccl::calls("ncclAllReduce"), 2 * 6);
}

TEST(NcclPacked, ProcessSetsAgreeForThemselves) {
  // Rank 1 cannot pack: a set without it does.
  PackedJob job(3, [](RuntimeOptions& options) {
    if (options.rank == 1) options.gpu_kernels = nullptr;
  });
  job.on_every_rank([&](int rank) {
    const Ticket added = job[rank].add_process_set({0, 2});
    ASSERT_TRUE(job[rank].wait(added, Deadline::after(20'000'000'000)));
    const auto set = static_cast<std::uint32_t>(job[rank].operation(added)->number);
    job[rank].release(added);
    Tensor first(job.device(rank), Ints(5, rank + 1));
    Tensor second(job.device(rank), Ints(7, rank + 2));
    const auto group = [&](std::uint32_t of_set) {
      std::vector<Submission> members = {job.of(rank, "a", first, first), job.of(rank, "b", second, second)};
      for (Submission& each : members) each.request.process_set = of_set;
      run_group(job, rank, members);
    };
    group(0);
    if (rank != 1) group(set);
    EXPECT_EQ(first.values(job.stream(rank)), Ints(5, rank == 1 ? 6 : 12));
    EXPECT_EQ(second.values(job.stream(rank)), Ints(7, rank == 1 ? 9 : 18));
    testing_support::finish(job[rank], job[rank].remove_process_set(set));
    group(0);
    EXPECT_EQ(first.values(job.stream(rank)), Ints(5, 30));
  });
  EXPECT_EQ(FakeNccl::calls("ncclAllReduce"), 2 * 3 * 2 + 2) << "groups of two calls, but for the set that packs";
}

/// Ranks that cannot all pack: all make groups of calls, and no operation is lost.
class NcclPackedInability : public testing::TestWithParam<Inability> {};

TEST_P(NcclPackedInability, OfOneRankMakesBatchesOfAllGroupsOfCalls) {
  const Inability& one = GetParam();
  PackedJob job(3, one.adjust);
  job.on_every_rank([&](int rank) {  // connects, and packs nothing
    Tensor tensor(job.device(rank), Ints(10, 1));
    job.run(rank, job.of(rank, "first", tensor, tensor));
    (void)tensor.values(job.stream(rank));
  });
  const int before = FakeNccl::calls("ncclAllReduce");
  if (one.call != nullptr) {
    std::vector<std::unique_ptr<Tensor>> tensors;  // made before the call fails
    for (int i = 0; i < 6; ++i) tensors.push_back(std::make_unique<Tensor>(job.device(i / 2), Ints(9, i / 2 + 1)));
    FakeGpu::fail(one.call, 0, 2);
    job.on_every_rank([&](int rank) {
      Tensor& first = *tensors[static_cast<std::size_t>(2 * rank)];
      Tensor& second = *tensors[static_cast<std::size_t>(2 * rank + 1)];
      for (int round = 0; round < 2; ++round) {
        run_group(job, rank, {job.of(rank, "a", first, first), job.of(rank, "b", second, second)});
      }
      EXPECT_EQ(first.values(job.stream(rank)), Ints(9, 18));
      EXPECT_EQ(second.values(job.stream(rank)), Ints(9, 18));
    });
    EXPECT_EQ(FakeNccl::calls("ncclAllReduce") - before, 2 * 3 * 2);
  } else {
    sum_groups(job, 3, 3);
    EXPECT_EQ(FakeNccl::calls("ncclAllReduce") - before, 3 * 3 * 3);
  }
  EXPECT_EQ(FakeGpu::calls("cuLaunchKernel"), 0);
  EXPECT_EQ(RingJob::staged(), 0);
}

INSTANTIATE_TEST_SUITE_P(Ranks, NcclPackedInability,
                         testing::Values(Inability{"without kernels",
                                                   [](RuntimeOptions& o) {
                                                     if (o.rank == 1) o.gpu_kernels = nullptr;
                                                   }},
                                         Inability{"without a compiler",
                                                   [](RuntimeOptions& o) {
                                                     if (o.rank == 2) o.gpu_kernels = no_compiler;
                                                   }},
                                         Inability{"that cannot load them", nullptr, "cuModuleLoadData"},
                                         Inability{"without memory", nullptr, "cuMemAlloc_v2"}),
                         [](const auto& each) {
                           std::string name = each.param.what;
                           std::replace(name.begin(), name.end(), ' ', '_');
                           return name;
                         });

TEST(NcclPacked, ABufferThatCannotGrowOnOneRankEndsPackingOnAll) {
  PackedJob job(2);
  std::vector<std::unique_ptr<Tensor>> tensors;
  for (int i = 0; i < 4; ++i) tensors.push_back(std::make_unique<Tensor>(job.device(i / 2), Ints(400'000, i / 2 + 1)));
  sum_groups(job, 2, 1);
  EXPECT_EQ(FakeNccl::calls("ncclAllReduce"), 2);
  FakeGpu::fail("cuMemAlloc_v2", 0, 2);
  job.on_every_rank([&](int rank) {
    Tensor& first = *tensors[static_cast<std::size_t>(2 * rank)];
    Tensor& second = *tensors[static_cast<std::size_t>(2 * rank + 1)];
    run_group(job, rank, {job.of(rank, "a", first, first), job.of(rank, "b", second, second)});
    EXPECT_EQ(first.values(job.stream(rank)), Ints(400'000, 3));
    EXPECT_EQ(second.values(job.stream(rank)), Ints(400'000, 3));
  });
  EXPECT_EQ(FakeNccl::calls("ncclAllReduce"), 2 + 2 * 2);
  sum_groups(job, 2, 1);
  EXPECT_EQ(FakeNccl::calls("ncclAllReduce"), 2 + 2 * 2 + 2 * 3);
}

class NcclPackedFault : public testing::TestWithParam<const char*> {};

TEST_P(NcclPackedFault, EndsTheJobOnAllRanksAndNothingHangsInAStreamNorIsLeft) {
  FakeGpu gpu;
  {
    PackedJob job(2);
    sum_groups(job, 2, 1);
    std::vector<std::unique_ptr<Tensor>> tensors;  // live as long as streams may write into them
    for (int i = 0; i < 4; ++i) tensors.push_back(std::make_unique<Tensor>(job.device(i / 2), Ints(9, 1)));
    if (std::string(GetParam()).starts_with("nccl")) {
      FakeNccl::fail(GetParam(), 2, 3);
    } else {
      FakeGpu::fail(GetParam(), 3, 999);
    }
    std::atomic<int> told = 0;
    job.on_every_rank([&](int rank) {
      Tensor& first = *tensors[static_cast<std::size_t>(2 * rank)];
      Tensor& second = *tensors[static_cast<std::size_t>(2 * rank + 1)];
      try {
        for (int i = 0; i < 1000; ++i) {
          run_group(job, rank, {job.of(rank, "a", first, first), job.of(rank, "b", second, second)});
        }
      } catch (const DeviceError&) {
        ++told;
      } catch (const PeerLost&) {
        ++told;
      }
      (void)first.values(job.stream(rank));  // returns
      (void)second.values(job.stream(rank));
    });
    EXPECT_EQ(told, 2);
    job.end();
  }
  EXPECT_EQ(FakeGpu::alive(), 0);
}

INSTANTIATE_TEST_SUITE_P(Calls, NcclPackedFault, testing::Values("cuLaunchKernel", "ncclAllReduce", "ncclGroupEnd"));

TEST(NcclPacked, APeerThatIsLostFreesWhatWaitsForItInStreams) {
  PackedJob job(2);
  sum_groups(job, 2, 1);
  FakeNccl::hang();
  std::vector<std::unique_ptr<Tensor>> tensors;
  for (int i = 0; i < 4; ++i) tensors.push_back(std::make_unique<Tensor>(job.device(i / 2), Ints(8, 1)));
  job.on_every_rank([&](int rank) {
    const Tensor& first = *tensors[static_cast<std::size_t>(2 * rank)];
    const Tensor& second = *tensors[static_cast<std::size_t>(2 * rank + 1)];
    run_group(job, rank, {job.of(rank, "a", first, first), job.of(rank, "b", second, second)});
  });
  FakeNccl::break_rank(1, 3);  // it ends by an error of its own, when both streams wait
  job.on_every_rank([&](int rank) {
    for (int i = 0; i < 2; ++i) {  // come to an end on both
      (void)tensors[static_cast<std::size_t>(2 * rank + i)]->values(job.stream(rank));
    }
  });
  job.end();
  EXPECT_EQ(FakeNccl::aborted(), 2);
}

TEST(NcclPacked, ShuttingDownWaitsForWhatUnpacks) {
  FakeGpu gpu;
  {
    PackedJob job(2);
    std::vector<std::unique_ptr<Tensor>> tensors;
    for (int i = 0; i < 4; ++i) tensors.push_back(std::make_unique<Tensor>(job.device(i / 2), Ints(3000, 0)));
    job.on_every_rank([&](int rank) {
      std::vector<Ticket> tickets;
      for (std::size_t i = 0; i < 2; ++i) {
        Tensor& tensor = *tensors[2 * static_cast<std::size_t>(rank) + i];
        tensor.fill(job.stream(rank), rank + 1);
        Submission submission = job.of(rank, "t" + std::to_string(i), tensor, tensor);
        submission.request.group = "pair";
        submission.request.group_size = 2;
        tickets.push_back(job[rank].submit(std::move(submission)));
      }
      for (const Ticket ticket : tickets) {
        ASSERT_TRUE(job[rank].wait(ticket, Deadline::after(20'000'000'000)));
        job[rank].release(ticket);
      }
      job[rank].shutdown(5'000'000'000);  // nobody's stream has waited for the results
    });
    EXPECT_EQ(FakeGpu::calls("cuLaunchKernel"), 4);
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(tensors[static_cast<std::size_t>(i)]->values(job.stream(i / 2)), Ints(3000, 3));
    }
  }
  EXPECT_EQ(FakeGpu::alive(), 0);
}

}  // namespace
}  // namespace ringtune
