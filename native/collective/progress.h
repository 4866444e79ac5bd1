// The one way in which a collective waits: work while there is work, then sleep on the rank's waker.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "trace/piece_log.h"
#include "transport/waker.h"

namespace ringtune {

/// Calls `advance` until `done`. When nothing advances it sleeps until the waker is rung; when nothing has advanced for
/// `idle_timeout_ns` (0 = for ever) it calls `complain`, which throws.
template <typename Done, typename Advance, typename Complain>
void advance_until(Waker& waker, std::int64_t idle_timeout_ns, Done done, Advance advance, Complain complain) {
  const auto idle_deadline = [&] { return idle_timeout_ns > 0 ? Deadline::after(idle_timeout_ns) : Deadline::never(); };
  Deadline deadline = idle_deadline();
  bool fresh = true;  // the deadline was set since the last byte moved
  while (!done()) {
    // The ticket is drawn before looking, so that a notify in between ends the wait at once.
    const std::uint32_t ticket = waker.prepare();
    if (advance()) {
      fresh = false;
      continue;
    }
    // Read the clock only when there is nothing to do: not on the fast path.
    if (!fresh) deadline = idle_deadline();
    fresh = true;
    if (deadline.expired()) complain();
    const WaitTimer timer;
    waker.wait(ticket, deadline);
  }
}

}  // namespace ringtune
