#include "collective/host_layout.h"

#include <gtest/gtest.h>

namespace ringtune {
namespace {

using Positions = std::vector<int>;

TEST(HostLayout, TwoHostsOfTwo) {
  const HostLayout layout = layout_of({"a", "a", "b", "b"}, 3);
  EXPECT_EQ(layout.local, (Positions{2, 3}));
  EXPECT_EQ(layout.cross, (Positions{1, 3}));
  EXPECT_EQ(layout.leaders, (Positions{0, 2}));
  EXPECT_TRUE(layout.homogeneous);
  EXPECT_TRUE(layout.levels);
}

TEST(HostLayout, RanksDealtOutInTurn) {
  const HostLayout layout = layout_of({"a", "b", "a", "b"}, 2);
  EXPECT_EQ(layout.local, (Positions{0, 2}));
  EXPECT_EQ(layout.cross, (Positions{2, 3}));
  EXPECT_EQ(layout.leaders, (Positions{0, 1}));
}

TEST(HostLayout, UnequalHostsHaveLeadersOnly) {
  const HostLayout layout = layout_of({"a", "b", "b"}, 2);
  EXPECT_FALSE(layout.homogeneous);
  EXPECT_TRUE(layout.cross.empty());
  EXPECT_EQ(layout.leaders, (Positions{0, 1}));
  EXPECT_TRUE(layout.levels);
}

TEST(HostLayout, OneHostOrOneRankEachHasNoLevels) {
  EXPECT_FALSE(layout_of({"a", "a", "a"}, 1).levels);
  EXPECT_FALSE(layout_of({"a", "b", "c"}, 1).levels);
  EXPECT_FALSE(layout_of({"a"}, 0).levels);
}

}  // namespace
}  // namespace ringtune
