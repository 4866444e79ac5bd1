// A burst of exchanges with rank 0: the sample is the quickest one's, at its own moment.
#include "runtime/clock_sync.h"

#include <gtest/gtest.h>

#include <optional>

namespace ringtune {
namespace {

constexpr std::int64_t kOffsetNs = 1'000'000;

// An exchange that takes `there_ns` to rank 0 and `back_ns` from it, begun at `asked_ns`.
std::optional<ClockSample> exchange(ClockSync& clock, std::int64_t asked_ns, std::int64_t there_ns,
                                    std::int64_t back_ns) {
  return clock.answered(asked_ns, asked_ns + there_ns + kOffsetNs, asked_ns + there_ns + back_ns);
}

TEST(ClockSyncTest, TheQuickestExchangeOfABurstCountsWhereItWas) {
  ClockSync clock;
  clock.begin();
  EXPECT_FALSE(exchange(clock, 100, 4'000, 6'000));
  EXPECT_FALSE(exchange(clock, 20'000, 300, 101));
  // As when the process loses its core: right within its bound, and useless.
  for (int turn = 2; turn < ClockSync::kBurst - 1; ++turn)
    EXPECT_FALSE(exchange(clock, turn * 1'000'000, 7'000, 90'000));
  EXPECT_TRUE(clock.active());
  const auto sample = exchange(clock, 3'000'000'000, 500'000'000, 10);
  ASSERT_TRUE(sample);
  EXPECT_FALSE(clock.active());
  EXPECT_EQ(sample->at_ns, 20'200);
  EXPECT_EQ(sample->offset_ns, kOffsetNs + 300 - 200);
  EXPECT_EQ(sample->error_ns, 201);
  EXPECT_FALSE(exchange(clock, 4'000'000'000, 1, 1));
}

}  // namespace
}  // namespace ringtune
