#include "base/cores.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <vector>

#include "base/error.h"

namespace ringtune {
namespace {

CoreSet set_of(std::initializer_list<std::size_t> cores) {
  CoreSet set;
  for (const std::size_t core : cores) set.set(core);
  return set;
}

bool all_run(const std::vector<CoreSet>& threads) { return run_at_once(threads); }

TEST(BaseCores, ThisThreadHasSome) { EXPECT_TRUE(usable_cores().any()); }

TEST(BaseCores, ThreadsThatMayGoAnywhereNeedOneCoreEach) {
  const CoreSet both = set_of({0, 1});
  EXPECT_TRUE(all_run({}));
  EXPECT_TRUE(all_run({both}));
  EXPECT_TRUE(all_run({both, both}));
  EXPECT_FALSE(all_run({both, both, both}));
}

TEST(BaseCores, BoundThreadsHaveEnoughWhereTheirCoresDiffer) {
  EXPECT_TRUE(all_run({set_of({0}), set_of({1})}));
  EXPECT_TRUE(all_run({set_of({5}), set_of({1000})}));
  EXPECT_FALSE(all_run({set_of({3}), set_of({3})}));
  EXPECT_TRUE(all_run({set_of({0, 1}), set_of({2, 3}), set_of({0, 1}), set_of({2, 3})}));
  EXPECT_FALSE(all_run({set_of({0, 1}), set_of({0, 1}), set_of({0, 1}), set_of({2, 3})}))
      << "a core is free, but not theirs";
}

TEST(BaseCores, OneThatIsBoundCountsAmongThoseThatAreNot) {
  EXPECT_TRUE(all_run({set_of({0}), set_of({0, 1})}));
  EXPECT_FALSE(all_run({set_of({0}), set_of({0, 1}), set_of({1})}));
  EXPECT_TRUE(all_run({set_of({0}), set_of({0, 1, 2}), set_of({1})}));
}

TEST(BaseCores, OfWhomNothingIsKnownHasNone) {
  EXPECT_FALSE(all_run({set_of({0}), CoreSet()}));
  EXPECT_FALSE(all_run({CoreSet()}));
}

TEST(BaseCores, TheyComeBackFromTheWire) {
  for (const CoreSet& cores : {CoreSet(), set_of({0}), set_of({1, 63, 64, 500, 1023}), ~CoreSet()}) {
    ByteWriter writer;
    write_cores(writer, cores);
    const Bytes bytes = writer.take();
    EXPECT_EQ(bytes.size(), cores.size() / 8);
    ByteReader reader(bytes);
    EXPECT_EQ(read_cores(reader), cores);
    reader.expect_end();
    ByteReader cut(ByteView(bytes).first(bytes.size() - 1));
    EXPECT_THROW((void)read_cores(cut), Protocol);
  }
}

}  // namespace
}  // namespace ringtune
