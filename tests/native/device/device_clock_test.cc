// A GPU's clock beside the host's: the arithmetic as tables and at random, and the looks on the fake driver, whose
// clock drifts and counts from elsewhere.
#include "device/device_clock.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <random>

#include "base/clock.h"
#include "device/fake_gpu.h"

namespace ringtune {
namespace {

using testing_support::FakeGpu;

constexpr std::int64_t kSecond = 1'000'000'000;

TEST(HostMoment, OneAnchorKnowsNoDriftAndSaysSo) {
  const ClockAnchor anchor{0, 5 * kSecond, 3000};
  const HostMoment later = host_moment(anchor, nullptr, 1e9);
  EXPECT_EQ(later.ns, 6 * kSecond);
  EXPECT_EQ(later.error_ns, 3000 + 100'000 + 500 + 60) << "its own, 100 us a second, the resolution, a float's";
  EXPECT_EQ(host_moment(anchor, nullptr, -1e9).ns, 4 * kSecond);
  EXPECT_EQ(host_moment(anchor, nullptr, -1e9).error_ns, later.error_ns);
  EXPECT_EQ(host_moment(anchor, nullptr, 0).error_ns, 3500);
}

TEST(HostMoment, BetweenTwoAnchorsTheClocksRunEvenly) {
  const ClockAnchor first{0, 0, 1000};
  const ClockAnchor second{2e9, 2'000'100'000, 3000};  // the device loses 50 us a second
  const HostMoment middle = host_moment(first, &second, 1e9);
  EXPECT_EQ(middle.ns, 1'000'050'000);
  EXPECT_EQ(middle.error_ns, 2000 + 500 + 60);
  const HostMoment from_there = host_moment(second, &first, -1e9);
  EXPECT_EQ(from_there.ns, middle.ns);
  EXPECT_EQ(from_there.error_ns, middle.error_ns);
}

TEST(HostMoment, BeyondTheAnchorsTheErrorGrowsWithTheDistance) {
  const ClockAnchor first{0, 0, 1000};
  const ClockAnchor second{1e9, 1'000'050'000, 1000};
  const HostMoment beyond = host_moment(second, &first, 2e9);
  EXPECT_EQ(beyond.ns, 3'000'150'000);
  EXPECT_EQ(beyond.error_ns, 1000 + 2 * 2000 + 500 + 120);
}

TEST(HostMoment, AnchorsTooNearEachOtherTellNoDrift) {
  const ClockAnchor first{0, 0, 5000};
  const ClockAnchor second{1e6, 1'004'000, 5000};  // 4000 us a second: no quartz, but two errors of 5 us in 1 ms
  const HostMoment beyond = host_moment(second, &first, 1e9);
  EXPECT_EQ(beyond.ns, 1'001'004'000);
  EXPECT_EQ(beyond.error_ns, 5000 + 100'000 + 500 + 60);
}

TEST(HostMoment, TheTruthLiesWithinTheErrorWhateverTheClocksDo) {
  std::mt19937_64 random(7);
  const auto between = [&](double low, double high) { return std::uniform_real_distribution(low, high)(random); };
  for (int round = 0; round < 2000; ++round) {
    const double rate = 1.0 + between(-0.9, 0.9) * kMostClockDrift;  // seconds of the host in one of the device
    const auto anchor_at = [&](double device_ns) {
      const double half = between(100, 20'000);
      const double off = between(-1, 1) * half;
      return ClockAnchor{device_ns, std::llround(device_ns * rate + off),
                         static_cast<std::int64_t>(std::ceil(half)) + 1};
    };
    const ClockAnchor near = anchor_at(between(0, 1e9));
    const ClockAnchor other = anchor_at(near.device_ns + between(-3e9, 3e9));
    const double since = between(-4e9, 4e9);
    const double truth = (near.device_ns + since) * rate;
    for (const ClockAnchor* const second : {&other, static_cast<const ClockAnchor*>(nullptr)}) {
      const HostMoment found = host_moment(near, second, since);
      EXPECT_LE(std::abs(static_cast<double>(found.ns) - truth), static_cast<double>(found.error_ns)) << round;
    }
  }
}

/// An event in a stream, and the host's looks at its clock around it.
struct Bracketed {
  explicit Bracketed(const CudaDevice& device) : event(device, CudaEventUse::kTimed) {
    CudaStream stream(device);
    from_ns = now_ns();
    event.record(stream.handle());
    event.synchronize();
    until_ns = now_ns();
  }
  /// Whether the clock's answer allows what the host has seen.
  [[nodiscard]] testing::AssertionResult fits(DeviceClock& clock) const {
    const HostMoment found = clock.when(event, from_ns, until_ns);
    if (found.ns + found.error_ns >= from_ns && found.ns - found.error_ns <= until_ns) {
      return testing::AssertionSuccess();
    }
    return testing::AssertionFailure() << found.ns << " +- " << found.error_ns << ", seen between " << from_ns
                                       << " and " << until_ns;
  }
  CudaEvent event;
  std::int64_t from_ns = 0;
  std::int64_t until_ns = 0;
};

class DeviceClockTest : public testing::Test {
 protected:
  FakeGpu gpu_;
  CudaDevice device_{FakeGpu::driver(), 1};
  CudaDevice::Current current_{device_};
};

TEST_F(DeviceClockTest, PlacesWhatWasBeforeBetweenAndAfterItsAnchors) {
  FakeGpu::set_clock_drift(80'000);
  DeviceClock clock(device_);
  EXPECT_TRUE(clock.wants_anchor());
  const Bracketed before(device_);
  EXPECT_TRUE(before.fits(clock)) << "it makes an anchor";
  EXPECT_FALSE(clock.wants_anchor());
  EXPECT_EQ(clock.drift_ppb(), 0);
  const Bracketed between(device_);
  EXPECT_TRUE(between.fits(clock));
  clock.anchor();
  EXPECT_TRUE(before.fits(clock));
  EXPECT_TRUE(between.fits(clock));
  const Bracketed after(device_);
  EXPECT_TRUE(after.fits(clock));
  for (int i = 0; i < 20; ++i) clock.anchor();
  EXPECT_TRUE(before.fits(clock)) << "the anchors near it are gone";
  EXPECT_TRUE(after.fits(clock));
}

TEST_F(DeviceClockTest, SeesHowFastTheDevicesClockRuns) {
  constexpr int kDrift = 100'000'000;  // a tenth: far more than what looks are off by
  FakeGpu::set_clock_drift(kDrift);
  DeviceClock clock(device_);
  clock.anchor();
  const ClockAnchor first = clock.last();
  const std::int64_t end_ns = now_ns() + kSecond / 50;
  while (now_ns() < end_ns) {
  }
  clock.anchor();
  const auto apart = static_cast<double>(clock.last().host_ns - first.host_ns);
  const double error = 1.2e9 * static_cast<double>(first.error_ns + clock.last().error_ns + kEventResolutionNs) / apart;
  EXPECT_NEAR(static_cast<double>(clock.drift_ppb()), kDrift, error);
}

TEST_F(DeviceClockTest, LeavesNothing) {
  const int before = FakeGpu::alive();
  {
    DeviceClock clock(device_);
    for (int i = 0; i < 12; ++i) clock.anchor();
  }
  EXPECT_EQ(FakeGpu::alive(), before);
}

}  // namespace
}  // namespace ringtune
