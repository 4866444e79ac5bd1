#include "base/clock.h"

#include <ctime>

namespace ringtune {
namespace {

std::int64_t read_clock(clockid_t clock) noexcept {
  timespec time{};
  ::clock_gettime(clock, &time);  // cannot fail for these two clocks; served by the vDSO without a system call
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

std::int64_t now_ns() noexcept { return read_clock(CLOCK_MONOTONIC); }
std::int64_t unix_now_ns() noexcept { return read_clock(CLOCK_REALTIME); }

Deadline Deadline::after(std::int64_t delay_ns) noexcept {
  const std::int64_t now = now_ns();
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  return delay_ns > kMax - now ? never() : at(now + delay_ns);
}

bool Deadline::expired() const noexcept { return !is_never() && now_ns() >= when_ns_; }

std::int64_t Deadline::remaining_ns() const noexcept {
  if (is_never()) return when_ns_;
  const std::int64_t now = now_ns();
  return when_ns_ > now ? when_ns_ - now : 0;
}

}  // namespace ringtune
