#include "runtime/clock_looks.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/futex.h"

namespace ringtune {
namespace {

constexpr std::int64_t kClockIntervalNs = 10'000'000'000;  // of looks that nobody asks for, at most

}  // namespace

ClockLooks::ClockLooks(Fabric& fabric, ControlPlane* control, Tracer& tracer, EngineStatus& status)
    : control_(control), tracer_(tracer), status_(status), rank_(fabric.rank()) {
  const std::vector<std::string> hosts = fabric.hosts();
  shares_clock_ = hosts.at(static_cast<std::size_t>(rank_)) == hosts.front();
}

void ClockLooks::wanted(std::uint32_t looks) {
  if (looks == wanted_) return;
  wanted_ = looks;
  begin();
}

void ClockLooks::begin() {
  if (shares_clock_) {
    record({.at_ns = now_ns()});
  } else if (!sync_.active()) {
    sync_.begin();
    ask();
  }
}

void ClockLooks::ask() {
  control_->send(control_->parent(), encode(ClockPing{now_ns(), 0, rank_}));
  control_->flush();
}

void ClockLooks::take(const ClockPing& ping, int from) {
  const std::int64_t now = now_ns();
  if (rank_ == 0) {
    control_->send(from, encode(ClockPing{ping.worker_ns, now, ping.rank}));
  } else if (const auto sample = sync_.answered(ping.worker_ns, ping.coordinator_ns, now)) {
    record(*sample);
  } else if (sync_.active()) {
    ask();
  }
}

void ClockLooks::look_again() {
  if (shares_clock_ || !tracer_.recording() || tracer_.of_group()) return;
  const std::int64_t now = now_ns();
  if (now - last_ns_ <= interval_ns_) return;
  begin();
  last_ns_ = now;
  interval_ns_ = std::min(2 * interval_ns_, kClockIntervalNs);
}

void ClockLooks::record(const ClockSample& sample) {
  last_ns_ = now_ns();
  const Generation& generation = tracer_.generation();
  if (generation.clock_error_ns >= 0) {
    const std::int64_t offset_ns = sample.offset_ns + generation.clock_offset_ns;
    const std::int64_t error_ns = sample.error_ns + generation.clock_error_ns;
    status_.set_clock(offset_ns, error_ns);
    tracer_.event("CLOCK", "clock", sample.at_ns,
                  "{\"offset_ns\":" + std::to_string(offset_ns) + ",\"error_ns\":" + std::to_string(error_ns) + "}");
  }
  recorded_.store(wanted_, std::memory_order_release);
  futex_wake(recorded_, kFutexWakeAll, FutexScope::kPrivate);
}

void ClockLooks::wait_for(std::uint32_t number, Deadline deadline) const {
  while (true) {
    const std::uint32_t seen = recorded_.load(std::memory_order_acquire);
    if (seen >= number || deadline.expired()) return;
    futex_wait(recorded_, seen, deadline, FutexScope::kPrivate);
  }
}

}  // namespace ringtune
