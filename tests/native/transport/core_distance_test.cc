#include "transport/core_distance.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace ringtune {
namespace {

TEST(CoreDistance, FollowsWhatALineTakes) {
  EXPECT_EQ(distance_of(0, 11), CoreDistance::kSameCore);
  EXPECT_EQ(distance_of(1.4, 11), CoreDistance::kSameCore);
  EXPECT_EQ(distance_of(4, 11), CoreDistance::kSharedCache);
  EXPECT_EQ(distance_of(6, 11), CoreDistance::kSharedCache);
  EXPECT_EQ(distance_of(15, 11), CoreDistance::kApart);
  EXPECT_EQ(distance_of(1e6, 11), CoreDistance::kApart);
}

TEST(CoreDistance, CoresOfOneLargeCacheMayTakeLonger) {
  EXPECT_EQ(distance_of(15, 25), CoreDistance::kSharedCache);
  EXPECT_EQ(distance_of(30, 25), CoreDistance::kApart);
  EXPECT_GE(least_ns_apart(), 11);
}

TEST(CoreDistance, HasNames) {
  EXPECT_EQ(name_of(CoreDistance::kSameCore), "same core");
  EXPECT_EQ(name_of(CoreDistance::kSharedCache), "shared cache");
  EXPECT_EQ(name_of(CoreDistance::kApart), "apart");
}

TEST(DistanceMeter, TheFirstMeasurementCounts) {
  DistanceMeter meter;
  EXPECT_EQ(meter.distance(), CoreDistance::kSameCore);
  meter.add(5);
  EXPECT_EQ(meter.distance(), CoreDistance::kSharedCache);
}

TEST(DistanceMeter, OneMeasurementOutOfLineChangesNothing) {
  DistanceMeter meter;
  for (const double ns : {5.0, 5.0, 5.0, 1e5, 5.0, 5.0, 0.5, 5.0}) {
    meter.add(ns);
    EXPECT_EQ(meter.distance(), CoreDistance::kSharedCache) << "after " << ns << " ns";
  }
}

TEST(DistanceMeter, AMoveIsSeenByTheSecondMeasurement) {
  DistanceMeter meter;
  for (int i = 0; i < 10; ++i) meter.add(5);
  const std::vector<std::pair<double, CoreDistance>> moves{
      {100, CoreDistance::kApart}, {1, CoreDistance::kSameCore}, {5, CoreDistance::kSharedCache}};
  for (const auto& [ns, distance] : moves) {
    meter.add(ns);
    EXPECT_NE(meter.distance(), distance);
    meter.add(ns);
    EXPECT_EQ(meter.distance(), distance);
  }
}

TEST(DistanceMeter, TimesLinesThatAreReadInBetween) {
  const auto lines = std::make_unique<DistanceLines>();
  DistanceMeter meter;
  for (std::uint64_t i = 1; i <= 5; ++i) {
    read_lines(*lines);
    meter.time(*lines);
    for (const DistanceLines::Line& line : lines->lines) EXPECT_EQ(line.value.load(), i);
  }
}

}  // namespace
}  // namespace ringtune
