#include "collective/algorithm.h"

#include <gtest/gtest.h>

#include <set>
#include <string_view>

#include "base/error.h"

namespace ringtune {
namespace {

using enum Algorithm;

TEST(AlgorithmTable, TheFirstRowThatFitsCounts) {
  const AlgorithmTable table({{LinkClass::kNetwork, 4, 1000, kFlat},
                              {LinkClass::kNetwork, 0, 1000, kTree},
                              {LinkClass::kNetwork, 2, 0, kRecursiveDoubling}});
  EXPECT_EQ(table.choose(LinkClass::kNetwork, 4, 1000), kFlat);
  EXPECT_EQ(table.choose(LinkClass::kNetwork, 5, 1000), kTree);
  EXPECT_EQ(table.choose(LinkClass::kNetwork, 2, 1001), kRecursiveDoubling);
  EXPECT_EQ(table.choose(LinkClass::kNetwork, 3, 1001), kRing);
  EXPECT_EQ(table.choose(LinkClass::kMemory, 2, 1), kRing);
}

TEST(AlgorithmTable, TravelsWhole) {
  const AlgorithmTable table({{LinkClass::kMemory, 7, 1ull << 40, kTree}, {LinkClass::kNetwork, 0, 0, kFlat}});
  EXPECT_EQ(AlgorithmTable::decode(table.encode()), table);
  EXPECT_EQ(AlgorithmTable::decode(AlgorithmTable().encode()), AlgorithmTable());
}

TEST(AlgorithmTable, RefusesWhatItDoesNotKnow) {
  Bytes bytes = AlgorithmTable({{LinkClass::kNetwork, 0, 0, kFlat}}).encode();
  bytes.back() = std::byte{99};
  EXPECT_THROW((void)AlgorithmTable::decode(bytes), Protocol);
  bytes.front() = std::byte{200};
  EXPECT_THROW((void)AlgorithmTable::decode(bytes), Protocol);
  EXPECT_THROW(AlgorithmTable({{LinkClass::kNetwork, 0, 0, kTable}}), InvalidArgument);
}

TEST(Algorithms, HaveNamesOfTheirOwn) {
  std::set<std::string_view> names;
  for (int i = 0; i < kAlgorithmCount; ++i) names.insert(name_of(static_cast<Algorithm>(i)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kAlgorithmCount));
}

}  // namespace
}  // namespace ringtune
