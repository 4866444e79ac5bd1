#include "transport/core_latency.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace ringtune {
namespace {

TEST(CoreLatency, FollowsWhatALineTakes) {
  EXPECT_EQ(distance_of(0, 11), CoreLatency::kSameCore);
  EXPECT_EQ(distance_of(1.4, 11), CoreLatency::kSameCore);
  EXPECT_EQ(distance_of(4, 11), CoreLatency::kSharedCache);
  EXPECT_EQ(distance_of(6, 11), CoreLatency::kSharedCache);
  EXPECT_EQ(distance_of(15, 11), CoreLatency::kApart);
  EXPECT_EQ(distance_of(1e6, 11), CoreLatency::kApart);
}

TEST(CoreLatency, CoresOfOneLargeCacheMayTakeLonger) {
  EXPECT_EQ(distance_of(15, 25), CoreLatency::kSharedCache);
  EXPECT_EQ(distance_of(30, 25), CoreLatency::kApart);
  EXPECT_GE(least_ns_apart(), 11);
}

TEST(CoreLatency, HasNames) {
  EXPECT_EQ(name_of(CoreLatency::kSameCore), "same core");
  EXPECT_EQ(name_of(CoreLatency::kSharedCache), "shared cache");
  EXPECT_EQ(name_of(CoreLatency::kApart), "apart");
}

TEST(DistanceMeter, TheFirstMeasurementCounts) {
  DistanceMeter meter;
  EXPECT_EQ(meter.distance(), CoreLatency::kSameCore);
  meter.add(5);
  EXPECT_EQ(meter.distance(), CoreLatency::kSharedCache);
}

TEST(DistanceMeter, OneMeasurementOutOfLineChangesNothing) {
  DistanceMeter meter;
  for (const double ns : {5.0, 5.0, 5.0, 1e5, 5.0, 5.0, 0.5, 5.0}) {
    meter.add(ns);
    EXPECT_EQ(meter.distance(), CoreLatency::kSharedCache) << "after " << ns << " ns";
  }
}

TEST(DistanceMeter, AMoveIsSeenByTheSecondMeasurement) {
  DistanceMeter meter;
  for (int i = 0; i < 10; ++i) meter.add(5);
  const std::vector<std::pair<double, CoreLatency>> moves{
      {100, CoreLatency::kApart}, {1, CoreLatency::kSameCore}, {5, CoreLatency::kSharedCache}};
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
