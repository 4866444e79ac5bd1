// When something happened on a GPU, on the host's clock, and how far that may be off.
//
// A driver tells only how far apart two events were on the device's clock, as a float of milliseconds. So an *anchor*,
// an event in a stream of its own, is recorded and waited for between two looks at the host's clock: it happened
// between them. Moments near it are placed by their distance to it; a second anchor says how fast the device's clock
// runs. Anchors are made again from time to time, because a float that holds many seconds has lost the microseconds.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "device/cuda.h"

namespace ringtune {

/// One moment on both clocks.
struct ClockAnchor {
  double device_ns = 0;       // since the first anchor
  std::int64_t host_ns = 0;   // CLOCK_MONOTONIC
  std::int64_t error_ns = 0;  // that is right within plus or minus this
};

struct HostMoment {
  std::int64_t ns = 0;
  std::int64_t error_ns = 0;
};

/// The driver tells distances in steps of about so much.
inline constexpr std::int64_t kEventResolutionNs = 500;
/// What the clocks of a device and of its host may differ by where nothing was measured: 100 us a second.
inline constexpr double kMostClockDrift = 1e-4;

/// Where on the host's clock a moment `since_ns` after `near` (negative: before it) lies. Pure. `other`: another
/// anchor, null if there is none; between two anchors the clocks are taken to run evenly.
[[nodiscard]] HostMoment host_moment(const ClockAnchor& near, const ClockAnchor* other, double since_ns);

/// One thread at a time, with the device's context current. Throws DeviceError.
class DeviceClock {
 public:
  static constexpr std::int64_t kAnchorEveryNs = 1'000'000'000;

  explicit DeviceClock(const CudaDevice& device) : device_(device), stream_(device) {}

  /// Makes an anchor: the quickest of a few looks. Blocks for some microseconds each.
  void anchor();
  /// Whether the last anchor is old, or there is none.
  [[nodiscard]] bool wants_anchor() const;
  [[nodiscard]] bool has_anchor() const noexcept { return !anchors_.empty(); }
  /// The last one; there must be one.
  [[nodiscard]] const ClockAnchor& last() const { return anchors_.back().is; }
  /// How many ns a second the device's clock ran faster than the host's between the last two anchors; 0 before.
  [[nodiscard]] std::int64_t drift_ppb() const;

  /// When a timed event was reached that was recorded after `from_ns` and seen reached before `until_ns`, on the host's
  /// clock. Makes an anchor if none lies before or after that time.
  [[nodiscard]] HostMoment when(const CudaEvent& event, std::int64_t from_ns, std::int64_t until_ns);

 private:
  struct Held {
    ClockAnchor is;
    std::int64_t begin_ns = 0;  // looks at the host's clock before and after
    std::int64_t end_ns = 0;
    std::unique_ptr<CudaEvent> event;
  };

  Held look();
  [[nodiscard]] int nearest(std::int64_t from_ns, std::int64_t until_ns) const;

  const CudaDevice& device_;
  CudaStream stream_;  // of its own: other streams are busy
  std::deque<Held> anchors_;
};

}  // namespace ringtune
