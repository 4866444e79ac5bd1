#include "device/device_clock.h"

#include <cmath>
#include <utility>

#include "base/clock.h"

namespace ringtune {
namespace {

constexpr int kLooks = 4;
constexpr std::size_t kMostAnchors = 8;

std::int64_t whole(double ns) { return std::llround(ns); }

/// A float of milliseconds keeps 24 bits.
double lost_in_float(double ns) { return std::abs(ns) * 0x1p-24; }

}  // namespace

HostMoment host_moment(const ClockAnchor& near, const ClockAnchor* other, double since_ns) {
  double rate = 1.0;
  double error = static_cast<double>(near.error_ns) + std::abs(since_ns) * kMostClockDrift;
  const double apart = other == nullptr ? 0.0 : other->device_ns - near.device_ns;
  if (apart != 0.0) {
    const double measured = static_cast<double>(other->host_ns - near.host_ns) / apart;
    const double place = since_ns / apart;  // 0 at `near`, 1 at `other`
    const auto both = static_cast<double>(near.error_ns + other->error_ns);
    // Beyond the anchors an error of the rate grows with the distance; between them it cannot.
    const bool between = place >= 0.0 && place <= 1.0;
    if (between) {
      rate = measured;
      error = static_cast<double>(near.error_ns) * (1.0 - place) + static_cast<double>(other->error_ns) * place;
    } else if (both / std::abs(apart) < kMostClockDrift) {
      rate = measured;
      error = static_cast<double>(near.error_ns) + std::abs(since_ns) * both / std::abs(apart);
    }
  }
  error += static_cast<double>(kEventResolutionNs) + lost_in_float(since_ns);
  return {near.host_ns + whole(since_ns * rate), static_cast<std::int64_t>(std::ceil(error))};
}

DeviceClock::Held DeviceClock::look() {
  Held held;
  held.event = std::make_unique<CudaEvent>(device_, CudaEventUse::kClock);
  held.begin_ns = now_ns();
  held.event->record(stream_.handle());
  held.event->synchronize();
  held.end_ns = now_ns();
  return held;
}

void DeviceClock::anchor() {
  Held best = look();
  for (int i = 1; i < kLooks; ++i) {
    Held another = look();
    if (another.end_ns - another.begin_ns < best.end_ns - best.begin_ns) best = std::move(another);
  }
  const std::int64_t half = (best.end_ns - best.begin_ns + 1) / 2;
  best.is.host_ns = best.begin_ns + half;
  best.is.error_ns = half;
  if (!anchors_.empty()) {
    const Held& before = anchors_.back();
    const double apart = best.event->elapsed_ns_since(*before.event);
    best.is.device_ns = before.is.device_ns + apart;
    best.is.error_ns += kEventResolutionNs + whole(lost_in_float(apart));
  }
  anchors_.push_back(std::move(best));
  if (anchors_.size() > kMostAnchors) anchors_.pop_front();
}

bool DeviceClock::wants_anchor() const {
  return anchors_.empty() || now_ns() - anchors_.back().end_ns > kAnchorEveryNs;
}

std::int64_t DeviceClock::drift_ppb() const {
  if (anchors_.size() < 2) return 0;
  const ClockAnchor& last = anchors_.back().is;
  const ClockAnchor& before = anchors_[anchors_.size() - 2].is;
  const auto host = static_cast<double>(last.host_ns - before.host_ns);
  return host <= 0.0 ? 0 : whole(((last.device_ns - before.device_ns) / host - 1.0) * 1e9);
}

/// The nearest anchor that surely lies before or after that time; -1 if there is none.
int DeviceClock::nearest(std::int64_t from_ns, std::int64_t until_ns) const {
  int found = -1;
  std::int64_t distance = 0;
  for (std::size_t i = 0; i < anchors_.size(); ++i) {
    const Held& held = anchors_[i];
    if (held.end_ns > from_ns && held.begin_ns < until_ns) continue;
    const std::int64_t away = held.end_ns <= from_ns ? until_ns - held.end_ns : held.begin_ns - from_ns;
    if (found >= 0 && away > distance) continue;
    found = static_cast<int>(i);
    distance = away;
  }
  return found;
}

HostMoment DeviceClock::when(const CudaEvent& event, std::int64_t from_ns, std::int64_t until_ns) {
  if (nearest(from_ns, until_ns) < 0) anchor();
  const auto at = static_cast<std::size_t>(nearest(from_ns, until_ns));
  const Held& near = anchors_[at];
  const bool before = near.end_ns <= from_ns;
  const double since = before ? event.elapsed_ns_since(*near.event) : -near.event->elapsed_ns_since(event);
  const ClockAnchor* other = nullptr;
  if (at + 1 < anchors_.size() && (before || at == 0)) other = &anchors_[at + 1].is;
  if (other == nullptr && at > 0) other = &anchors_[at - 1].is;
  return host_moment(near.is, other, since);
}

}  // namespace ringtune
