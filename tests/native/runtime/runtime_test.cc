#include "runtime/runtime.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "runtime/job.h"

namespace ringtune {
namespace {

using testing_support::allreduce_of;
using testing_support::barrier_of;
using testing_support::finish;
using testing_support::Job;

class RuntimeAtSize : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, RuntimeAtSize, testing::Values(1, 2, 3, 5));

TEST_P(RuntimeAtSize, SumsExactly) {
  Job job(GetParam());
  job.on_every_rank([&](int rank) {
    std::vector<std::int32_t> data(1003);
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::int32_t>(i) * (rank + 1);
    finish(job[rank], job[rank].submit(allreduce_of("x", data)));
    const int ranks = job.size() * (job.size() + 1) / 2;
    for (std::size_t i = 0; i < data.size(); ++i) ASSERT_EQ(data[i], static_cast<std::int32_t>(i) * ranks);
  });
}

TEST_P(RuntimeAtSize, AverageOfIntegersTruncatesTowardZero) {
  Job job(GetParam());
  job.on_every_rank([&](int rank) {
    std::vector<std::int32_t> data{rank + 1, -(rank + 1)};
    finish(job[rank], job[rank].submit(allreduce_of("x", data, ReduceOp::kAverage)));
    const int average = (job.size() + 1) * job.size() / 2 / job.size();
    EXPECT_EQ(data, (std::vector<std::int32_t>{average, -average}));
  });
}

TEST_P(RuntimeAtSize, FusesManyTensorsWithoutMixingThem) {
  Job job(GetParam(), [](RuntimeOptions& options) { options.knobs.fusion_bytes = 4096; });
  job.on_every_rank([&](int rank) {
    std::vector<std::vector<float>> tensors;
    for (std::size_t i = 0; i < 60; ++i)
      tensors.emplace_back(1 + 7 * i, static_cast<float>(i + 1) * static_cast<float>(rank + 1));
    for (int round = 0; round < 3; ++round) {
      std::vector<Ticket> tickets;
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        std::fill(tensors[i].begin(), tensors[i].end(),
                  static_cast<float>((i + 1) * static_cast<std::size_t>(rank + 1)));
        tickets.push_back(job[rank].submit(allreduce_of("t" + std::to_string(i), tensors[i])));
      }
      for (const Ticket ticket : tickets) finish(job[rank], ticket);
      const auto ranks = static_cast<std::size_t>(job.size() * (job.size() + 1) / 2);
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        const auto expected = static_cast<float>((i + 1) * ranks);
        ASSERT_TRUE(std::all_of(tensors[i].begin(), tensors[i].end(), [&](float v) { return v == expected; })) << i;
      }
    }
  });
}

TEST_P(RuntimeAtSize, GathersBlocksOfDifferentLength) {
  Job job(GetParam());
  job.on_every_rank([&](int rank) {
    std::vector<std::int32_t> mine(static_cast<std::size_t>(rank) * 2, rank);  // rank 0 gives nothing
    Submission submission = allreduce_of("g", mine);
    submission.request.kind = CollectiveKind::kAllgather;
    submission.request.shape = {rank, 2};
    const Ticket ticket = job[rank].submit(std::move(submission));
    ASSERT_TRUE(job[rank].wait(ticket, Deadline::after(10'000'000'000)));
    const OperationPtr done = job[rank].operation(ticket);
    std::vector<std::int32_t> expected;
    for (int r = 0; r < job.size(); ++r) expected.insert(expected.end(), static_cast<std::size_t>(r) * 2, r);
    EXPECT_EQ(done->gathered_shape, (std::vector<std::int64_t>{job.size() * (job.size() - 1) / 2, 2}));
    ASSERT_EQ(done->gathered.size(), expected.size() * 4);
    EXPECT_TRUE(
        std::equal(done->gathered.begin(), done->gathered.end(), reinterpret_cast<const std::byte*>(expected.data())));
    job[rank].release(ticket);
  });
}

TEST_P(RuntimeAtSize, BroadcastsFromEveryRoot) {
  Job job(GetParam());
  job.on_every_rank([&](int rank) {
    for (int root = 0; root < job.size(); ++root) {
      std::vector<float> data(333, static_cast<float>(rank));
      Submission submission = allreduce_of("b", data);
      submission.request.kind = CollectiveKind::kBroadcast;
      submission.request.root = root;
      finish(job[rank], job[rank].submit(std::move(submission)));
      ASSERT_TRUE(std::all_of(data.begin(), data.end(), [&](float v) { return v == static_cast<float>(root); }));
    }
  });
}

TEST_P(RuntimeAtSize, KnobsChangeUnderLoadWithoutAWrongBit) {
  Job job(GetParam());
  job.on_every_rank([&](int rank) {
    std::vector<std::vector<std::int32_t>> tensors(20, std::vector<std::int32_t>(500));
    for (std::int32_t round = 0; round < 60; ++round) {
      std::vector<Ticket> tickets;
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        std::fill(tensors[i].begin(), tensors[i].end(), round + static_cast<std::int32_t>(i) + rank);
        tickets.push_back(job[rank].submit(allreduce_of("t" + std::to_string(i), tensors[i])));
        if (rank == 0 && i == 10) {
          Knobs knobs;
          knobs.fusion_bytes = static_cast<std::uint64_t>((round % 7) * 1500);
          knobs.cycle_time_ns = (round % 3) * 50'000;
          knobs.segment_bytes = static_cast<std::uint64_t>(64 << (round % 5));
          knobs.cache_capacity = static_cast<std::uint32_t>(round % 4) * 8;
          EXPECT_EQ(job[0].propose_knobs(knobs), static_cast<std::uint32_t>(round + 1));
        }
      }
      for (const Ticket ticket : tickets) finish(job[rank], ticket);
      const std::int32_t ranks = job.size() * (job.size() - 1) / 2;
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        const std::int32_t expected = (round + static_cast<std::int32_t>(i)) * job.size() + ranks;
        ASSERT_TRUE(std::all_of(tensors[i].begin(), tensors[i].end(), [&](std::int32_t v) { return v == expected; }));
      }
    }
    finish(job[rank], job[rank].submit(barrier_of("end")));
    EXPECT_EQ(job[rank].knobs_version(), 60u);
  });
}

TEST_P(RuntimeAtSize, CastsOnTheWireWhileItPacks) {
  Job job(GetParam());
  job.on_every_rank([&](int rank) {
    // 1 + 2^-11 is halfway between two numbers of float16 and becomes 1; times 4 nothing is lost.
    std::vector<float> lone(777, 1.0F + 0x1p-11F);
    std::vector<std::vector<float>> fused(20, std::vector<float>(33, static_cast<float>(rank + 1)));
    Submission submission = allreduce_of("lone", lone);
    submission.request.wire = DType::kFloat16;
    finish(job[rank], job[rank].submit(std::move(submission)));
    ASSERT_EQ(lone, std::vector<float>(777, static_cast<float>(job.size())));
    std::vector<Ticket> tickets;
    for (std::size_t i = 0; i < fused.size(); ++i) {
      Submission one = allreduce_of("f" + std::to_string(i), fused[i], ReduceOp::kAverage);
      if (i % 2 == 0) one.request.wire = DType::kBfloat16;
      one.request.postscale = 2.0;
      tickets.push_back(job[rank].submit(std::move(one)));
    }
    for (const Ticket ticket : tickets) finish(job[rank], ticket);
    for (const auto& one : fused) ASSERT_EQ(one, std::vector<float>(33, static_cast<float>(job.size() + 1)));
  });
}

TEST(Runtime, AnotherCompressionOnOneRankFailsEverywhereAndTheJobGoesOn) {
  Job job(3);
  job.on_every_rank([&](int rank) {
    std::vector<float> data{1.0F};
    Submission submission = allreduce_of("x", data);
    if (rank == 1) submission.request.wire = DType::kFloat16;
    const Ticket bad = job[rank].submit(std::move(submission));
    EXPECT_THROW((void)job[rank].wait(bad, Deadline::after(10'000'000'000)), Mismatch);
    job[rank].release(bad);
    finish(job[rank], job[rank].submit(allreduce_of("x", data)));
    EXPECT_EQ(data, (std::vector<float>{3.0F}));
  });
}

TEST(Runtime, RefusesATypeThatATensorCannotTravelAs) {
  Job job(1);
  std::vector<float> data{1.0F};
  Submission submission = allreduce_of("x", data);
  submission.request.wire = DType::kInt16;
  EXPECT_THROW((void)job[0].submit(submission), InvalidArgument);
  submission.request.wire = DType::kFloat16;
  submission.request.op = ReduceOp::kAdasum;
  EXPECT_THROW((void)job[0].submit(submission), InvalidArgument);
}

TEST(Runtime, MismatchIsThrownEverywhereAndTheJobGoesOn) {
  Job job(3);
  job.on_every_rank([&](int rank) {
    std::vector<float> data(rank == 1 ? 5 : 4, 1.0f);
    const Ticket bad = job[rank].submit(allreduce_of("x", data));
    EXPECT_THROW((void)job[rank].wait(bad, Deadline::after(10'000'000'000)), Mismatch);
    job[rank].release(bad);
    data.assign(4, 1.0f);
    finish(job[rank], job[rank].submit(allreduce_of("x", data)));
    EXPECT_EQ(data, std::vector<float>(4, 3.0f));
  });
}

TEST(Runtime, NameInFlightIsRefusedOnThisRankOnly) {
  Job job(2);
  std::vector<float> data(4, 1.0f);
  std::vector<float> again(4, 1.0f);
  const Ticket first = job[0].submit(allreduce_of("x", data));
  EXPECT_THROW((void)job[0].submit(allreduce_of("x", again)), InvalidArgument);
  std::vector<float> other(4, 2.0f);
  finish(job[1], job[1].submit(allreduce_of("x", other)));
  finish(job[0], first);
  EXPECT_EQ(data, std::vector<float>(4, 3.0f));
}

TEST(Runtime, ShutdownOfOneRankFailsTheOthersOperations) {
  Job job(2);
  std::vector<float> data(4, 1.0f);
  const Ticket ticket = job[0].submit(allreduce_of("x", data));
  job[1].shutdown(5'000'000'000);
  EXPECT_THROW((void)job[0].wait(ticket, Deadline::after(10'000'000'000)), ShutDown);
  EXPECT_THROW((void)job[1].submit(allreduce_of("y", data)), ShutDown);
}

TEST(Runtime, UnknownTicketIsNamed) {
  Job job(1);
  EXPECT_THROW((void)job[0].poll(42), InvalidArgument);
  EXPECT_THROW((void)job[0].wait(42, Deadline::after(0)), InvalidArgument);
}

TEST(Runtime, WaitGivesUpAtItsDeadlineAndTheOperationGoesOn) {
  Job job(2);
  std::vector<float> data(4, 1.0f);
  const Ticket ticket = job[0].submit(allreduce_of("x", data));
  EXPECT_FALSE(job[0].wait(ticket, Deadline::after(1'000'000)));
  std::vector<float> other(4, 2.0f);
  finish(job[1], job[1].submit(allreduce_of("x", other)));
  finish(job[0], ticket);
}

TEST(Runtime, KnobsAreRankZerosFromTheStart) {
  Job job(2, [](RuntimeOptions& options) { options.knobs.fusion_bytes = options.rank == 0 ? 111 : 222; });
  job.on_every_rank([&](int rank) {
    finish(job[rank], job[rank].submit(barrier_of("b")));
    EXPECT_EQ(job[rank].knobs().fusion_bytes, 111u);
  });
  EXPECT_THROW((void)job[1].propose_knobs({}), InvalidArgument);
}

TEST(Runtime, StepsCountWhatHappened) {
  Job job(2);
  job.on_every_rank([&](int rank) {
    std::vector<float> data(1000, 1.0f);
    for (int step = 0; step < 3; ++step) {
      finish(job[rank], job[rank].submit(allreduce_of("x", data)));
      const StepStats stats = job[rank].end_step();
      EXPECT_EQ(stats.step, static_cast<std::uint32_t>(step));
      EXPECT_EQ(stats.values.bytes, 4000);
      EXPECT_EQ(stats.values.collectives, 1);
      EXPECT_EQ(stats.values.batches, 1);
      EXPECT_GT(stats.values.communicate_ns, 0);
      EXPECT_GE(stats.end_ns, stats.begin_ns);
    }
  });
}

TEST(Runtime, TimelineHoldsEveryStageOfATensor) {
  const std::string folder = testing::TempDir() + "/ringtune-runtime-" + std::to_string(::getpid());
  std::filesystem::create_directories(folder);
  {
    Job job(2);
    job.on_every_rank([&](int rank) {
      job[rank].start_timeline({.path = folder + "/" + std::to_string(rank) + ".spans",
                                .mark_cycles = true,
                                .shown = folder + "/" + std::to_string(rank) + ".json"});
      std::vector<float> a(1000, 1.0f);
      std::vector<float> b(1000, 1.0f);
      const Ticket first = job[rank].submit(allreduce_of("grad \"a\"", a));
      const Ticket second = job[rank].submit(allreduce_of("b", b));
      finish(job[rank], first);
      finish(job[rank], second);
      (void)job[rank].end_step();
      job[rank].stop_timeline();
    });
  }
  std::ifstream file(folder + "/1.json");
  std::stringstream text;
  text << file.rdbuf();
  for (const char* part :
       {"NEGOTIATE_ALLREDUCE", "RING_ALLREDUCE", "CALLBACK", "IN_FLIGHT", "BUS_BANDWIDTH", "\"WAIT\"", "\"step 0\"",
        "CYCLE_START", "\"CLOCK\"", "\"KNOBS\"", "grad \\\"a\\\"", "ringtune_end"}) {
    EXPECT_NE(text.str().find(part), std::string::npos) << part;
  }
  // Two tensors of one batch are one event, of two batches two.
  EXPECT_TRUE(text.str().find("\"queued_ns\"") != std::string::npos ||
              text.str().find("\"QUEUE\"") != std::string::npos);
  std::filesystem::remove_all(folder);
}

struct TopologyCase {
  std::vector<std::string> hosts;
  int rank;
  Topology expected;
};

class TopologyTable : public testing::TestWithParam<TopologyCase> {};

TEST_P(TopologyTable, FollowsTheHosts) {
  const Topology got = topology_of(GetParam().hosts, GetParam().rank);
  EXPECT_EQ(got.local_rank, GetParam().expected.local_rank);
  EXPECT_EQ(got.local_size, GetParam().expected.local_size);
  EXPECT_EQ(got.cross_rank, GetParam().expected.cross_rank);
  EXPECT_EQ(got.cross_size, GetParam().expected.cross_size);
  EXPECT_EQ(got.homogeneous, GetParam().expected.homogeneous);
}

INSTANTIATE_TEST_SUITE_P(Hosts, TopologyTable,
                         testing::Values(TopologyCase{{"a"}, 0, {0, 1, 0, 1, true}},
                                         TopologyCase{{"a", "a", "b", "b"}, 3, {1, 2, 1, 2, true}},
                                         TopologyCase{{"a", "b", "a", "b"}, 2, {1, 2, 0, 2, true}},
                                         TopologyCase{{"a", "a", "b"}, 1, {1, 2, 0, 1, false}},
                                         TopologyCase{{"a", "a", "b"}, 2, {0, 1, 1, 2, false}}));

}  // namespace
}  // namespace ringtune
