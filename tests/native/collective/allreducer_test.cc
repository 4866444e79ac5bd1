// The choice of algorithm, and the hierarchical one on several hosts of one machine.
#include "collective/allreducer.h"

#include <gtest/gtest.h>

#include <mutex>
#include <tuple>

#include "../transport/fabrics.h"
#include "base/error.h"
#include "numbers.h"
#include "ranks.h"

namespace ringtune::testing_support {
namespace {

using enum Algorithm;
using Hosts = std::vector<std::string>;

/// Runs `body` on every rank with the allreducer of all of them.
template <typename Body>
void run_allreducers(Joined& world, std::int64_t idle_timeout_ns, Body body,
                     std::size_t block_bytes = AllreducerOptions{}.block_bytes) {
  const int size = static_cast<int>(world.fabrics.size());
  on_threads(size, [&](int rank) {
    std::vector<int> members;
    for (int member = 0; member < size; ++member) members.push_back(member);
    Fabric& fabric = world[static_cast<std::size_t>(rank)];
    const MeshOptions mesh{.channel = "mesh", .connect_timeout_ns = kIdle, .idle_timeout_ns = idle_timeout_ns};
    const Group ring{.rank = rank, .size = size, .waker = &fabric.waker()};
    Allreducer allreducer(fabric, members, ring,
                          {.mesh = mesh, .table = {}, .block_bytes = block_bytes, .message_bytes = 64});
    body(allreducer, rank);
  });
}

class Hierarchical : public ::testing::TestWithParam<std::tuple<Hosts, std::size_t>> {};

TEST_P(Hierarchical, IsExactAndBitEqual) {
  const auto& [hosts, block_bytes] = GetParam();
  const int size = static_cast<int>(hosts.size());
  Joined world = join_hosts(hosts);
  std::mutex mutex;
  std::vector<Buffer> results;
  run_allreducers(
      world, kIdle,
      [&](Allreducer& allreducer, int rank) {
        for (const std::size_t count : {1, 7, 1000, 20'001, 300'003}) {
          for (const DType dtype : {DType::kFloat32, DType::kBfloat16, DType::kInt64}) {
            Buffer data = input_of(rank, count, dtype, ReduceOp::kSum);
            allreducer.run({.data = data, .dtype = dtype, .options = {.algorithm = kHierarchical}});
            EXPECT_TRUE(data == reduced_of(size, count, dtype, ReduceOp::kSum)) << "rank " << rank << ", " << count;
          }
        }
        std::vector<float> values(100'000);
        for (std::size_t i = 0; i < values.size(); ++i) {
          values[i] = 1.0F / static_cast<float>(i * 9 + static_cast<std::size_t>(rank) + 1);
        }
        const auto bytes = std::as_writable_bytes(std::span(values));
        allreducer.run({.data = bytes, .options = {.algorithm = kHierarchical}});
        const std::lock_guard lock(mutex);
        results.emplace_back(bytes.begin(), bytes.end());
      },
      block_bytes);
  for (const Buffer& result : results) EXPECT_TRUE(result == results.front());
}
// In one block, in a few, in as many as there may be.
INSTANTIATE_TEST_SUITE_P(
    Hosts, Hierarchical,
    ::testing::Combine(::testing::Values(Hosts{"a", "a", "b", "b"}, Hosts{"a", "b", "a", "b"}, Hosts{"a", "b", "b"},
                                         Hosts{"a", "a", "b", "b", "c", "c"}, Hosts{"a", "a", "a", "b", "b", "b"},
                                         Hosts{"a", "a", "b", "c", "c", "c"}),
                       ::testing::Values(std::size_t{4} << 20, std::size_t{300'000}, std::size_t{1})));

TEST(Allreducer, ChoosesByLevelsAndWish) {
  Joined world = join_hosts({"a", "a", "b"});
  run_allreducers(world, kIdle, [&](Allreducer& allreducer, int) {
    EXPECT_EQ(allreducer.choose(100, {}), kHierarchical);
    EXPECT_EQ(allreducer.choose(100, {.algorithm = kTree, .hierarchical = Switch::kAuto}), kTree);
    EXPECT_EQ(allreducer.choose(100, {.algorithm = kTree, .hierarchical = Switch::kOn}), kHierarchical);
    EXPECT_EQ(allreducer.choose(100, {.algorithm = kTable, .hierarchical = Switch::kOff}),
              AlgorithmTable().choose(LinkClass::kNetwork, 3, 100));
  });
}

TEST(Allreducer, OneLevelIsNeverHierarchical) {
  for (const char* kind : {"shm", "tcp"}) {
    Joined world = join(kind, 2);
    const LinkClass links = kind == std::string("shm") ? LinkClass::kMemory : LinkClass::kNetwork;
    run_allreducers(world, kIdle, [&](Allreducer& allreducer, int) {
      for (const std::size_t bytes : {1, 1 << 20, 1 << 28}) {
        EXPECT_EQ(allreducer.choose(bytes, {}), AlgorithmTable().choose(links, 2, bytes));
      }
      EXPECT_EQ(allreducer.choose(1, {.algorithm = kHierarchical, .hierarchical = Switch::kOn}), kRing);
    });
  }
}

TEST(Allreducer, RanksOfOnePlaceReduceAcrossHostsWhatIsTheirs) {
  Joined world = join_hosts({"a", "b", "a", "b", "c", "c"});  // of one place: 0, 1, 4 and 2, 3, 5
  run_allreducers(world, kIdle, [&](Allreducer& allreducer, int rank) {
    ASSERT_TRUE(allreducer.has_slices());
    EXPECT_EQ(allreducer.hosts(), 3);
    const bool first = rank == 0 || rank == 1 || rank == 4;
    for (const std::size_t count : {0, 1, 1000, 300'003}) {
      std::vector<std::int32_t> values(count, rank + 1);
      const auto bytes = std::as_writable_bytes(std::span(values));
      EXPECT_NE(allreducer.choose_across(bytes.size()), kHierarchical);
      allreducer.run_across({.data = bytes, .dtype = DType::kInt32});
      EXPECT_EQ(values, std::vector<std::int32_t>(count, first ? 8 : 13)) << "rank " << rank;
    }
  });
  Joined unequal = join_hosts({"a", "a", "b"});
  run_allreducers(unequal, kIdle, [&](Allreducer& allreducer, int) { EXPECT_FALSE(allreducer.has_slices()); });
}

TEST(Allreducer, ARankThatGoesEndsAHierarchicalWait) {
  Joined world = join_hosts({"a", "a", "b", "b"});
  run_allreducers(
      world, 0,
      [&](Allreducer& allreducer, int rank) {
        Buffer data(4 << 20);
        allreducer.run({.data = data, .options = {.algorithm = kHierarchical}});
        const auto own = static_cast<std::size_t>(rank);  // in several blocks
        if (rank != 3) {
          EXPECT_THROW(allreducer.run({.data = data, .options = {.algorithm = kHierarchical}}), PeerLost);
        }
        world.fabrics[own].reset();  // closes its links, as the kernel does for a process that died
      },
      64 << 10);
}

}  // namespace
}  // namespace ringtune::testing_support
