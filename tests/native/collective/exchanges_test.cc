// Alltoall, reducescatter and Adasum: schedules as tables, and what they promise over every kind of link.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <numeric>
#include <tuple>

#include "../transport/fabrics.h"
#include "base/error.h"
#include "collective/adasum.h"
#include "collective/alltoall.h"
#include "collective/communicator.h"
#include "collective/reducescatter.h"
#include "numbers.h"
#include "ranks.h"

namespace ringtune::testing_support {
namespace {

constexpr std::size_t kMebi = 1 << 20;

template <typename Body>
void run_set(Joined& world, int size, std::int64_t idle_timeout_ns, Body body) {
  on_threads(size, [&](int rank) {
    Communicator set(world[static_cast<std::size_t>(rank)], all_ranks(size),
                     {.connect_timeout_ns = kIdle, .idle_timeout_ns = idle_timeout_ns});
    body(set);
  });
}

std::string kind_and_size(const ::testing::TestParamInfo<std::tuple<std::string, int>>& it) {
  return std::get<0>(it.param) + "_" + std::to_string(std::get<1>(it.param));
}

class ExchangeContract : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

/// Bytes that `from` sends to `to`: none for some pairs, far more than a link holds for others.
std::size_t bytes_between(int from, int to, std::size_t scale) {
  return static_cast<std::size_t>((from * 3 + to * 5) % 4) * scale;
}

void expect_alltoall(Mesh& mesh, std::size_t scale) {
  Buffer input;
  Buffer expected;
  std::vector<std::size_t> sent;
  std::vector<std::size_t> received;
  for (int peer = 0; peer < mesh.size(); ++peer) {
    sent.push_back(bytes_between(mesh.rank(), peer, scale));
    received.push_back(bytes_between(peer, mesh.rank(), scale));
    const Buffer out = pattern(sent.back(), mesh.rank() * 100 + peer);
    const Buffer in = pattern(received.back(), peer * 100 + mesh.rank());
    input.insert(input.end(), out.begin(), out.end());
    expected.insert(expected.end(), in.begin(), in.end());
  }
  Buffer output(expected.size());
  alltoall(mesh, input, sent, output, received);
  EXPECT_TRUE(output == expected) << "rank " << mesh.rank();
}

TEST_P(ExchangeContract, AlltoallBringsEveryBlockToItsPlace) {
  const auto [kind, size] = GetParam();
  Joined world = join(kind, size, 4096);
  run_set(world, size, kIdle, [](Communicator& set) {
    for (const std::size_t scale : {std::size_t{0}, std::size_t{1}, std::size_t{777}, kMebi / 4 + 3}) {
      expect_alltoall(set.mesh(), scale);
    }
  });
}

TEST_P(ExchangeContract, CountsArriveFromEverybody) {
  const auto [kind, size] = GetParam();
  Joined world = join(kind, size, 4096);
  run_set(world, size, kIdle, [](Communicator& set) {
    std::vector<std::int64_t> mine;
    std::vector<std::int64_t> expected;
    for (int peer = 0; peer < set.size(); ++peer) {
      mine.push_back(set.rank() * 10 + peer);
      expected.push_back(peer * 10 + set.rank());
    }
    EXPECT_EQ(exchange_counts(set.mesh(), mine), expected);
  });
}

void expect_scattered(Communicator& set, std::int64_t rows, DType dtype, ReduceOp op) {
  std::vector<std::size_t> chunks;
  for (const std::int64_t count : cut_rows(rows, set.size())) {
    chunks.push_back(static_cast<std::size_t>(count) * size_of(dtype));
  }
  const auto begin =
      static_cast<std::ptrdiff_t>(std::accumulate(chunks.begin(), chunks.begin() + set.rank(), std::size_t{0}));
  const auto end = begin + static_cast<std::ptrdiff_t>(chunks[static_cast<std::size_t>(set.rank())]);
  Buffer data = input_of(set.rank(), static_cast<std::size_t>(rows), dtype, op);
  const Buffer expected = reduced_of(set.size(), static_cast<std::size_t>(rows), dtype, op);
  ring_reducescatter(set.ring(), data, chunks, dtype, op, {.segment_bytes = 1024});
  EXPECT_TRUE(std::equal(data.begin() + begin, data.begin() + end, expected.begin() + begin)) << "rank " << set.rank();
}

TEST_P(ExchangeContract, ReducescatterGivesEveryMemberItsRows) {
  const auto [kind, size] = GetParam();
  Joined world = join(kind, size, 4096);
  run_set(world, size, kIdle, [](Communicator& set) {
    for (const std::int64_t rows : {0, 1, 3, 1003, 200'003}) {
      expect_scattered(set, rows, DType::kFloat32, ReduceOp::kSum);
    }
    expect_scattered(set, 1003, DType::kUint8, ReduceOp::kMax);
    expect_scattered(set, 1003, DType::kBfloat16, ReduceOp::kSum);
    expect_scattered(set, 1003, DType::kInt64, ReduceOp::kSum);
  });
}

INSTANTIATE_TEST_SUITE_P(All, ExchangeContract,
                         ::testing::Combine(::testing::Values("inproc", "shm", "tcp", "tcp4"), ::testing::Range(1, 6)),
                         kind_and_size);

TEST(AdasumLevels, HalveWhatIsHeldBetweenNeighboursFirst) {
  using Levels = std::vector<AdasumLevel>;
  // 1000 floats: halves begin at cache lines while these are there.
  EXPECT_EQ(adasum_levels(4000, 4, 0, 4),
            (Levels{{1, true, {0, 1984}, {1984, 2016}, 0, 2}, {2, true, {0, 1024}, {1024, 960}, 0, 4}}));
  EXPECT_EQ(adasum_levels(4000, 4, 3, 4),
            (Levels{{2, false, {1984, 2016}, {0, 1984}, 2, 2}, {1, false, {3008, 992}, {1984, 1024}, 0, 4}}));
  EXPECT_EQ(adasum_levels(12, 4, 5, 8).back(), (AdasumLevel{1, false, {12, 0}, {8, 4}, 0, 8}));
  EXPECT_TRUE(adasum_levels(4000, 4, 0, 1).empty());
}

TEST(AdasumLevels, CoverTheTensorAndAgreeAmongTheMembersOfAPair) {
  for (const int size : {2, 4, 16, 64}) {
    for (const std::size_t count : {0, 1, 5, 100, 1003, 50'000}) {
      const std::size_t bytes = count * 8;
      std::size_t kept = 0;
      for (int rank = 0; rank < size; ++rank) {
        const std::vector<AdasumLevel> own = adasum_levels(bytes, 8, rank, size);
        for (std::size_t i = 0; i < own.size(); ++i) {
          const AdasumLevel theirs = adasum_levels(bytes, 8, own[i].peer, size)[i];
          EXPECT_EQ(own[i].given, theirs.kept);
          EXPECT_NE(own[i].lower, theirs.lower);
          EXPECT_EQ(own[i].first_holder, theirs.first_holder);
        }
        kept += own.back().kept.size;
      }
      EXPECT_EQ(kept, bytes) << size << " members, " << count << " elements";
    }
  }
}

class AdasumContract : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

void expect_adasum(Mesh& mesh, std::size_t count, DType dtype, bool parallel) {
  // Parallel vectors are averaged; where each member has ones of its own only, the products vanish and it is a sum.
  Buffer data(count * size_of(dtype));
  Buffer expected(data.size());
  for (std::size_t i = 0; i < count; ++i) {
    const int number = static_cast<int>(i % 5) - 2;
    const bool mine = static_cast<int>(i % static_cast<std::size_t>(mesh.size())) == mesh.rank();
    put_number(data.data() + i * size_of(dtype), dtype, parallel || mine ? number : 0);
    put_number(expected.data() + i * size_of(dtype), dtype, number);
  }
  adasum_allreduce(mesh, data, dtype);
  EXPECT_TRUE(data == expected) << "rank " << mesh.rank() << ", count " << count << ", " << name_of(dtype);
}

TEST_P(AdasumContract, AddsWhatIsOrthogonalAndAveragesWhatIsParallel) {
  const auto [kind, size] = GetParam();
  Joined world = join(kind, size, 4096);
  run_set(world, size, kIdle, [](Communicator& set) {
    for (const DType dtype : {DType::kFloat16, DType::kBfloat16, DType::kFloat32, DType::kFloat64}) {
      for (const std::size_t count : {0, 1, 2, 7, 1003, 50'000}) {
        expect_adasum(set.mesh(), count, dtype, true);
        expect_adasum(set.mesh(), count, dtype, false);
      }
    }
  });
}

using Vector = std::vector<double>;

Vector member_vector(int rank, std::size_t count) {
  Vector values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = std::sin(static_cast<double>(i) + rank) + 0.3 * rank;
  return values;
}

Vector combined(const Vector& a, const Vector& b) {
  const double ab = std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  const double aa = std::inner_product(a.begin(), a.end(), a.begin(), 0.0);
  const double bb = std::inner_product(b.begin(), b.end(), b.begin(), 0.0);
  Vector sum(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) sum[i] = (1 - ab / (2 * aa)) * a[i] + (1 - ab / (2 * bb)) * b[i];
  return sum;
}

TEST_P(AdasumContract, IsThePaperTreeAndBitEqualOnAllMembers) {
  const auto [kind, size] = GetParam();
  constexpr std::size_t kCount = 1003;
  std::vector<Vector> tree;
  for (int rank = 0; rank < size; ++rank) tree.push_back(member_vector(rank, kCount));
  for (; tree.size() > 1;) {
    std::vector<Vector> next;
    for (std::size_t i = 0; i < tree.size(); i += 2) next.push_back(combined(tree[i], tree[i + 1]));
    tree = std::move(next);
  }
  Joined world = join(kind, size, 4096);
  std::mutex mutex;
  std::vector<Vector> results;
  run_set(world, size, kIdle, [&](Communicator& set) {
    Vector values = member_vector(set.rank(), kCount);
    adasum_allreduce(set.mesh(), std::as_writable_bytes(std::span(values)), DType::kFloat64);
    for (std::size_t i = 0; i < kCount; ++i) EXPECT_NEAR(values[i], tree[0][i], 1e-12);
    const std::lock_guard lock(mutex);
    results.push_back(std::move(values));
  });
  for (const Vector& result : results) EXPECT_TRUE(result == results.front());
}

INSTANTIATE_TEST_SUITE_P(All, AdasumContract,
                         ::testing::Combine(::testing::Values("inproc", "shm", "tcp"), ::testing::Values(1, 2, 4, 8)),
                         kind_and_size);

TEST(Adasum, RefusesOtherSizesAndTypes) {
  Joined world = join("inproc", 3);
  run_set(world, 3, kIdle, [](Communicator& set) {
    Buffer data(8);
    EXPECT_THROW(adasum_allreduce(set.mesh(), data, DType::kFloat32), InvariantError);
  });
  Joined pair = join("inproc", 2);
  run_set(pair, 2, kIdle, [](Communicator& set) {
    Buffer data(8);
    EXPECT_THROW(adasum_allreduce(set.mesh(), data, DType::kInt32), InvariantError);
  });
}

TEST(Exchange, ATimeoutNamesTheMemberThatIsSilent) {
  Joined world = join("inproc", 3, 4096);
  run_set(world, 3, 50'000'000, [](Communicator& set) {
    const std::vector<int> others = set.rank() == 0 ? std::vector{1, 2} : std::vector{0, 3 - set.rank()};
    set.mesh().prepare(others);
    if (set.rank() == 1) return;  // never enters
    const Buffer input(3 * kMebi);
    Buffer output(3 * kMebi);
    const std::vector<std::size_t> blocks(3, kMebi);
    const Timeout error = expect_throw<Timeout>([&] { alltoall(set.mesh(), input, blocks, output, blocks); });
    EXPECT_NE(std::string(error.what()).find("rank 1 to send"), std::string::npos) << error.what();
  });
}

TEST(Reducescatter, TheFirstMembersGetOneRowMore) {
  using Rows = std::vector<std::int64_t>;
  EXPECT_EQ(cut_rows(3, 2), (Rows{2, 1}));
  EXPECT_EQ(cut_rows(1, 2), (Rows{1, 0}));
  EXPECT_EQ(cut_rows(0, 3), (Rows{0, 0, 0}));
  EXPECT_EQ(cut_rows(11, 4), (Rows{3, 3, 3, 2}));
}

TEST(Reducescatter, StepsOfThreeRanksEndWithTheOwnChunk) {
  constexpr auto kScatter = RingPhase::kReduceScatter;
  EXPECT_EQ(scatter_steps(0, 3), (std::vector<RingStep>{{kScatter, 2, 1}, {kScatter, 1, 0}}));
  EXPECT_EQ(scatter_steps(1, 3), (std::vector<RingStep>{{kScatter, 0, 2}, {kScatter, 2, 1}}));
  EXPECT_EQ(scatter_steps(2, 3), (std::vector<RingStep>{{kScatter, 1, 0}, {kScatter, 0, 2}}));
  EXPECT_TRUE(scatter_steps(0, 1).empty());
}

}  // namespace
}  // namespace ringtune::testing_support
