#include "runtime/statistics.h"

namespace ringtune {
namespace {

std::int64_t load(const std::atomic<std::uint64_t>& value) noexcept {
  return static_cast<std::int64_t>(value.load(std::memory_order_relaxed));
}
std::int64_t load(const std::atomic<std::int64_t>& value) noexcept { return value.load(std::memory_order_relaxed); }

}  // namespace

TrafficValues snapshot(const Traffic& traffic) noexcept { return {load(traffic.operations), load(traffic.bytes)}; }

CounterValues snapshot(const Counters& c) noexcept {
  TrafficValues all;
  for (const Traffic& traffic : c.traffic) {
    const TrafficValues values = snapshot(traffic);
    all.operations += values.operations;
    all.bytes += values.bytes;
  }
  return {all.bytes,       all.operations,  load(c.batches),          load(c.negotiate_ns), load(c.communicate_ns),
          load(c.copy_ns), load(c.wait_ns), load(c.control_messages), load(c.control_bytes)};
}

CounterValues operator-(const CounterValues& a, const CounterValues& b) noexcept {
  return {a.bytes - b.bytes,
          a.collectives - b.collectives,
          a.batches - b.batches,
          a.negotiate_ns - b.negotiate_ns,
          a.communicate_ns - b.communicate_ns,
          a.copy_ns - b.copy_ns,
          a.wait_ns - b.wait_ns,
          a.control_messages - b.control_messages,
          a.control_bytes - b.control_bytes};
}

}  // namespace ringtune
