#include "transport/affinity_balancer.h"

#include <sched.h>

#include <algorithm>

namespace ringtune {

std::optional<int> roomier_core(std::span<const int> cores, int position, const std::function<CoreSet()>& usable) {
  const auto own = static_cast<std::size_t>(position);
  const int here = cores[own];
  const auto on = [&](int core) { return std::count(cores.begin(), cores.end(), core); };
  // The last of those that are on a core is the one to go.
  const bool last = std::find(cores.begin() + position + 1, cores.end(), here) == cores.end();
  if (here < 0 || !last || on(here) < 2) return std::nullopt;
  const CoreSet open = usable();
  std::optional<int> best;
  for (int core = 0; core < static_cast<int>(open.size()); ++core) {
    if (!open[static_cast<std::size_t>(core)] || on(core) + 2 > on(here)) continue;
    if (!best || on(core) < on(*best)) best = core;
  }
  return best;
}

std::optional<int> AffinityBalancer::look(std::int64_t now_ns, std::span<const int> cores, int position,
                                          const std::function<CoreSet()>& usable) {
  next_look_ns_ = now_ns + kLookNs;
  const std::optional<int> core = roomier_core(cores, position, usable);
  const bool again = core && wanted_ == core;
  wanted_ = core;
  stayed_ = core ? 0 : stayed_ + 1;
  if (stayed_ >= kStays) pause_ns_ = 0;
  if (!again || now_ns < moved_ns_ + pause_ns_) return std::nullopt;
  pause_ns_ = std::clamp(2 * pause_ns_, kLeastPauseNs, kMostPauseNs);
  moved_ns_ = now_ns;
  wanted_.reset();
  return core;
}

int current_core() noexcept { return ::sched_getcpu(); }

void go_to_core(int core) noexcept {
  cpu_set_t all;
  CPU_ZERO(&all);
  if (::sched_getaffinity(0, sizeof all, &all) != 0) return;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(core), &one);
  if (::sched_setaffinity(0, sizeof one, &one) == 0) (void)::sched_setaffinity(0, sizeof all, &all);
}

}  // namespace ringtune
