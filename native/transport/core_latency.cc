#include "transport/core_latency.h"

#include <algorithm>

#include "base/clock.h"

namespace ringtune {
namespace {

// Virtual cores of an AMD EPYC, which move, took 1.4, 4 to 6 and 15 to 21 ns; a few cores share its third-level cache.
// An Intel Xeon, whose third-level cache serves all cores of a socket, took 6 to 9 ns, now and then 16.
constexpr double kSameCoreNs = 2;
constexpr double kApartNs = 11;
constexpr double kSocketsApartNs = 25;

}  // namespace

double least_ns_apart() noexcept {
#if defined(__x86_64__)
  return __builtin_cpu_is("amd") ? kApartNs : kSocketsApartNs;
#else
  return kSocketsApartNs;
#endif
}

std::string_view name_of(CoreLatency distance) noexcept {
  switch (distance) {
    case CoreLatency::kSameCore:
      return "same core";
    case CoreLatency::kSharedCache:
      return "shared cache";
    case CoreLatency::kApart:
      return "apart";
  }
  return "unknown";
}

CoreLatency distance_of(double ns_per_line, double least_ns_apart) noexcept {
  if (ns_per_line < kSameCoreNs) return CoreLatency::kSameCore;
  return ns_per_line < least_ns_apart ? CoreLatency::kSharedCache : CoreLatency::kApart;
}

void read_lines(const DistanceLines& lines) noexcept {
  // Relaxed: the values do not matter.
  for (const DistanceLines::Line& line : lines.lines) (void)line.value.load(std::memory_order_relaxed);
}

void DistanceMeter::time(DistanceLines& own) noexcept {
  const std::int64_t begin_ns = now_ns();
  for (DistanceLines::Line& line : own.lines) line.value.store(measured_ + 1, std::memory_order_relaxed);
  // Sequentially consistent, so that the time ends when all lines are written and not when they are queued. (A fence
  // would do, but the thread sanitizer knows none.)
  own.lines.back().value.store(measured_ + 1, std::memory_order_seq_cst);
  add(static_cast<double>(now_ns() - begin_ns) / DistanceLines::kLines);
}

void DistanceMeter::add(double ns_per_line) noexcept {
  if (measured_ == 0) last_.fill(ns_per_line);
  last_[measured_++ % kKept] = ns_per_line;
  const auto [a, b, c] = last_;
  const double middle = std::max(std::min(a, b), std::min(std::max(a, b), c));
  distance_ = distance_of(middle, least_ns_apart());
}

}  // namespace ringtune
