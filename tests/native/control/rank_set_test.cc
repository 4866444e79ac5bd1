#include "control/rank_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <random>
#include <set>

#include "base/error.h"
#include "control/tree.h"

namespace ringtune {
namespace {

RankSet as_runs(const std::set<int>& ranks) {
  return RankSet::of(std::vector<std::int32_t>(ranks.begin(), ranks.end()));
}

class RandomRankSets : public testing::TestWithParam<unsigned> {};
TEST_P(RandomRankSets, AgreeWithOrdinarySets) {
  std::mt19937 random(GetParam());
  std::set<int> a;
  std::set<int> b;
  for (int i = 0; i < 12; ++i) {
    a.insert(static_cast<int>(random() % 20));
    b.insert(static_cast<int>(random() % 20));
  }
  std::set<int> both;
  std::set<int> common;
  std::set<int> rest;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::inserter(both, both.end()));
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::inserter(common, common.end()));
  std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::inserter(rest, rest.end()));
  const RankSet left = as_runs(a);
  const RankSet right = as_runs(b);
  RankSet joined = left;
  joined.insert(right);
  EXPECT_EQ(joined, as_runs(both));
  EXPECT_EQ(joined.count(), static_cast<int>(both.size()));
  EXPECT_EQ(left.intersection(right), as_runs(common));
  EXPECT_EQ(left.without(right), as_runs(rest));
  EXPECT_EQ(left.intersects(right), !common.empty());
  EXPECT_EQ(left.includes(right), common == b);
  EXPECT_TRUE(joined.includes(left));
  EXPECT_EQ(left.ranks(), std::vector<int>(a.begin(), a.end()));
  for (int rank = 0; rank < 20; ++rank) {
    EXPECT_EQ(left.contains(rank), a.count(rank) == 1);
    EXPECT_EQ(left.position(rank), std::distance(a.begin(), a.lower_bound(rank)));
  }
  ByteWriter out;
  write_rank_set(out, left);
  ByteReader in(out.bytes());
  EXPECT_EQ(read_rank_set(in), left);
}
INSTANTIATE_TEST_SUITE_P(Seeds, RandomRankSets, testing::Range(0u, 200u));

TEST(RankSet, ManyNeighboursAreOneRun) {
  RankSet set;
  for (int rank = 0; rank < 4096; ++rank) set.insert(RankSet::one(rank));
  EXPECT_EQ(set, RankSet::range(0, 4096));
  EXPECT_EQ(set.runs().size(), 1u);
}

TEST(RankSet, MalformedBytesAreProtocolErrors) {
  const std::vector<std::vector<std::int32_t>> bad{{-1, 2}, {3, 2}, {0, 1 << 20}, {0, 2, 3, 4}, {5, 6, 1, 2}, {0}};
  for (const std::vector<std::int32_t>& numbers : bad) {
    ByteWriter out;
    out.u32(static_cast<std::uint32_t>((numbers.size() + 1) / 2));
    for (const std::int32_t number : numbers) out.i32(number);
    ByteReader in(out.bytes());
    EXPECT_THROW((void)read_rank_set(in), Protocol);
  }
}

class ControlTree : public testing::TestWithParam<std::pair<int, int>> {};
TEST_P(ControlTree, EveryRankIsBelowItsParentOnceAndNobodyHasTooManyChildren) {
  const auto [size, fan_out] = GetParam();
  std::vector<int> parents(static_cast<std::size_t>(size), -1);
  for (int rank = 0; rank < size; ++rank) {
    const TreePlace place = tree_place(rank, size, fan_out);
    EXPECT_LE(static_cast<int>(place.children.size()), fan_out);
    RankSet below = RankSet::one(rank);
    for (const TreeChild& child : place.children) {
      EXPECT_FALSE(below.intersects(child.ranks));
      below.insert(child.ranks);
      EXPECT_EQ(tree_place(child.rank, size, fan_out).parent, rank);
      EXPECT_EQ(tree_place(child.rank, size, fan_out).ranks, child.ranks);
    }
    EXPECT_EQ(below, place.ranks);
  }
  EXPECT_EQ(tree_place(0, size, fan_out).ranks, RankSet::range(0, size));
  EXPECT_EQ(tree_place(0, size, fan_out).parent, -1);
}
INSTANTIATE_TEST_SUITE_P(Shapes, ControlTree,
                         testing::Values(std::pair{1, 16}, std::pair{2, 16}, std::pair{17, 16}, std::pair{18, 16},
                                         std::pair{64, 16}, std::pair{300, 16}, std::pair{9, 1}, std::pair{40, 3}));

}  // namespace
}  // namespace ringtune
