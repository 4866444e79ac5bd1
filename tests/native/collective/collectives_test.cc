#include "collective/collectives.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <numeric>
#include <tuple>

#include "base/error.h"
#include "numbers.h"
#include "ranks.h"

namespace ringtune {
namespace {

using testing_support::Buffer;
using testing_support::input_of;
using testing_support::kIdle;
using testing_support::pattern;
using testing_support::reduced_of;
using testing_support::run_ring;
using testing_support::run_stingy_ring;

constexpr std::size_t kLinkRingBytes = 64 << 10;
constexpr std::size_t kMebi = 1 << 20;

void expect_allreduced(const Group& group, std::size_t count, DType dtype, ReduceOp op, std::size_t segment) {
  Buffer data = input_of(group.rank, count, dtype, op);
  ring_allreduce(group, data, dtype, op, {.segment_bytes = segment});
  EXPECT_TRUE(data == reduced_of(group.size, count, dtype, op)) << "rank " << group.rank;
}

class CollectiveAllreduceTypes : public ::testing::TestWithParam<std::tuple<int, DType, ReduceOp>> {};
TEST_P(CollectiveAllreduceTypes, IsExact) {
  const auto [size, dtype, op] = GetParam();
  run_ring(size, kLinkRingBytes, kIdle,
           [&, dtype = dtype, op = op](const Group& group) { expect_allreduced(group, 1003, dtype, op, 256); });
}
INSTANTIATE_TEST_SUITE_P(All, CollectiveAllreduceTypes,
                         ::testing::Combine(::testing::Values(1, 2, 3, 5),
                                            ::testing::Values(DType::kUint8, DType::kInt8, DType::kInt16, DType::kInt32,
                                                              DType::kInt64, DType::kFloat16, DType::kBfloat16,
                                                              DType::kFloat32, DType::kFloat64, DType::kBool),
                                            ::testing::Values(ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax,
                                                              ReduceOp::kProduct)));

// Sizes in elements; 1 MiB + 3 elements of float32. Rings of one page are far smaller than a chunk.
class CollectiveAllreduceSizes
    : public ::testing::TestWithParam<std::tuple<int, std::size_t, std::size_t, std::size_t>> {};
TEST_P(CollectiveAllreduceSizes, IsExact) {
  const auto [size, count, segment, ring] = GetParam();
  run_ring(size, ring, kIdle, [&, count = count, segment = segment](const Group& group) {
    expect_allreduced(group, count, DType::kFloat32, ReduceOp::kSum, segment);
  });
}
INSTANTIATE_TEST_SUITE_P(All, CollectiveAllreduceSizes,
                         ::testing::Combine(::testing::Range(1, 6), ::testing::Values(0, 1, 257, kMebi / 4 + 3),
                                            ::testing::Values(std::size_t{1}, std::size_t{64} << 10),
                                            ::testing::Values(std::size_t{4096}, kMebi)));

// Links that tear elements apart, over capacities below one segment.
class CollectiveStingy : public ::testing::TestWithParam<std::tuple<int, std::size_t>> {};
TEST_P(CollectiveStingy, AllreduceKeepsElementsWhole) {
  const auto [size, capacity] = GetParam();
  const std::size_t left = run_stingy_ring(size, capacity, [](const Group& group) {
    expect_allreduced(group, 501, DType::kInt64, ReduceOp::kSum, 128);
    expect_allreduced(group, 7, DType::kFloat32, ReduceOp::kProduct, 1 << 20);
    expect_allreduced(group, 333, DType::kFloat16, ReduceOp::kSum, 64);
  });
  EXPECT_EQ(left, 0U);
}
TEST_P(CollectiveStingy, OneOperationTakesNothingOfTheNext) {
  const auto [size, capacity] = GetParam();
  const std::size_t left = run_stingy_ring(size, capacity, [](const Group& group) {
    Buffer data = pattern(group.rank == 0 ? 999 : 0, 5);
    data.resize(999);
    chain_broadcast(group, data, 0, {});
    EXPECT_TRUE(data == pattern(999, 5));
    ring_barrier(group);
    expect_allreduced(group, 100, DType::kInt16, ReduceOp::kMax, 64);
  });
  EXPECT_EQ(left, 0U);
}
INSTANTIATE_TEST_SUITE_P(All, CollectiveStingy,
                         ::testing::Combine(::testing::Values(2, 3, 5), ::testing::Values(64, 100, 5000)));

TEST(CollectiveAllreduce, RoundedSumsAreBitEqualOnAllRanks) {
  std::mutex mutex;
  std::vector<Buffer> results;
  run_ring(4, kLinkRingBytes, kIdle, [&](const Group& group) {
    std::vector<float> values(5000);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = 1.0F / static_cast<float>(i * 4 + static_cast<std::size_t>(group.rank) + 1);
    }
    const auto bytes = std::as_writable_bytes(std::span(values));
    ring_allreduce(group, bytes, DType::kFloat32, ReduceOp::kSum, {});
    const std::lock_guard lock(mutex);
    results.emplace_back(bytes.begin(), bytes.end());
  });
  EXPECT_TRUE(results[0] == results[1] && results[0] == results[2] && results[0] == results[3]);
}

class CollectiveAllreduceRefuses : public ::testing::TestWithParam<ReduceOp> {};
TEST_P(CollectiveAllreduceRefuses, WhatIsComposedAboveIt) {
  Buffer data(8);
  EXPECT_THROW(ring_allreduce(Group{}, data, DType::kFloat32, GetParam(), {}), InvariantError);
}
INSTANTIATE_TEST_SUITE_P(Ops, CollectiveAllreduceRefuses, ::testing::Values(ReduceOp::kAverage, ReduceOp::kAdasum));

// Block of rank r in bytes: by case all equal, growing from zero, only one, none, large and odd.
using Blocks = std::vector<std::size_t>;
class CollectiveAllgather : public ::testing::TestWithParam<Blocks> {};
TEST_P(CollectiveAllgather, HoldsAllBlocksInOrder) {
  const Blocks& blocks = GetParam();
  Buffer expected;
  for (std::size_t rank = 0; rank < blocks.size(); ++rank) {
    const Buffer block = pattern(blocks[rank], static_cast<int>(rank));
    expected.insert(expected.end(), block.begin(), block.end());
  }
  run_ring(static_cast<int>(blocks.size()), 4096, kIdle, [&](const Group& group) {
    const auto own = static_cast<std::size_t>(group.rank);
    Buffer output(expected.size());
    const Buffer block = pattern(blocks[own], group.rank);
    const std::size_t begin = std::accumulate(blocks.begin(), blocks.begin() + group.rank, std::size_t{0});
    std::copy(block.begin(), block.end(), output.begin() + static_cast<std::ptrdiff_t>(begin));
    ring_allgather(group, output, blocks, {.segment_bytes = 1024});
    EXPECT_TRUE(output == expected) << "rank " << group.rank;
  });
}
INSTANTIATE_TEST_SUITE_P(Blocks, CollectiveAllgather,
                         ::testing::Values(Blocks{5}, Blocks{7, 7}, Blocks{0, 0}, Blocks{0, 9}, Blocks{0, 1, 2, 3},
                                           Blocks{0, 0, 11, 0, 0}, Blocks{kMebi + 3, 1, 0},
                                           Blocks{1, 70001, 0, 33, 5}));

class CollectiveBroadcast : public ::testing::TestWithParam<std::tuple<int, int, std::size_t>> {};
TEST_P(CollectiveBroadcast, ReachesEveryRank) {
  const auto [size, root_seed, bytes] = GetParam();
  const int root = root_seed % size;
  run_ring(size, 4096, kIdle, [&, bytes = bytes](const Group& group) {
    Buffer data = group.rank == root ? pattern(bytes, 3) : Buffer(bytes);
    chain_broadcast(group, data, root, {.segment_bytes = 8192});
    EXPECT_TRUE(data == pattern(bytes, 3)) << "rank " << group.rank;
  });
}
INSTANTIATE_TEST_SUITE_P(All, CollectiveBroadcast,
                         ::testing::Combine(::testing::Range(1, 6), ::testing::Values(0, 1, 4),
                                            ::testing::Values(0, 1, 777, kMebi + 3)));

class CollectiveBarrier : public ::testing::TestWithParam<int> {};
TEST_P(CollectiveBarrier, NobodyLeavesBeforeAllHaveEntered) {
  const int size = GetParam();
  std::atomic<int> entered{0};
  run_ring(size, 4096, kIdle, [&](const Group& group) {
    for (int round = 1; round <= 50; ++round) {
      entered.fetch_add(1);
      ring_barrier(group);
      EXPECT_GE(entered.load(), round * group.size);
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Ranks, CollectiveBarrier, ::testing::Range(1, 6));

TEST(CollectiveTimeout, NamesThePeerThatIsSilent) {
  run_ring(3, 4096, 50'000'000, [](const Group& group) {
    if (group.rank == 1) return;  // never enters
    Buffer data(64 << 10);
    try {
      ring_allreduce(group, data, DType::kFloat32, ReduceOp::kSum, {});
      ADD_FAILURE() << "rank " << group.rank << " finished without rank 1";
    } catch (const Timeout& error) {
      const std::string text = error.what();
      const std::string expected = group.rank == 2 ? "rank 1 to send" : "rank 1 to receive";
      EXPECT_NE(text.find(expected), std::string::npos) << text;
    }
  });
}

TEST(CollectiveLoss, AnAbortFromAnotherThreadEndsTheWait) {
  run_ring(2, 4096, 0, [](const Group& group) {
    if (group.rank == 1) return;  // silent, and no timeout would end the wait
    std::thread monitor([&] { group.prev->abort("rank 1 is gone"); });
    Buffer data(64 << 10);
    EXPECT_THROW(ring_allreduce(group, data, DType::kFloat32, ReduceOp::kSum, {}), PeerLost);
    monitor.join();
  });
}

}  // namespace
}  // namespace ringtune
