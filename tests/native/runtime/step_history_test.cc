#include "runtime/step_history.h"

#include <gtest/gtest.h>

namespace ringtune {
namespace {

TEST(StepHistory, AMomentIsInTheStepThatHadBegunLast) {
  StepHistory history;
  history.start(7, 1000);
  for (std::uint32_t step = 8; step <= 10; ++step) history.begin(step, step * 1000);
  EXPECT_EQ(history.at(10'000), 10U);
  EXPECT_EQ(history.at(99'999), 10U);
  EXPECT_EQ(history.at(9'999), 9U);
  EXPECT_EQ(history.at(8'000), 8U);
  EXPECT_EQ(history.at(7'999), 7U);
  EXPECT_EQ(history.at(0), 7U) << "there is none before the first";
}

TEST(StepHistory, OfAMomentBeforeAllThatAreKeptItIsTheOldest) {
  StepHistory history;
  history.start(0, 0);
  for (std::uint32_t step = 1; step <= 1000; ++step) history.begin(step, step * 10);
  EXPECT_EQ(history.at(9'995), 999U);
  EXPECT_EQ(history.at(9'375), 937U);
  EXPECT_EQ(history.at(9'369), 1000U - StepHistory::kKept + 1);
  EXPECT_EQ(history.at(0), 1000U - StepHistory::kKept + 1);
}

}  // namespace
}  // namespace ringtune
