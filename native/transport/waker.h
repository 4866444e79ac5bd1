// What a thread of this rank sleeps on: a futex word, or poll() over sockets when there are any.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"

namespace ringtune {

/// One per rank. `notify` is callable from any thread, and peers on this host ring it through shared memory.
/// Protocol of a waiter: ticket = prepare(); look for work; if none, wait(ticket, ...). A notify between the two makes
/// the wait return at once, so no wake-up is lost.
class Waker {
 public:
  virtual ~Waker() = default;
  [[nodiscard]] virtual std::uint32_t prepare() noexcept = 0;
  /// Returns when notified since `ticket`, when a watched socket has an event, or at the deadline. Spins for a few
  /// microseconds first only when the machine has a core to spare (see spin_ns), then blocks.
  virtual void wait(std::uint32_t ticket, Deadline deadline) = 0;
  virtual void notify() noexcept = 0;
  /// Sockets whose readiness also ends wait(). `want_write` is level-triggered: set only while a send is blocked.
  virtual void watch(int fd, bool want_write) = 0;
  virtual void unwatch(int fd) noexcept = 0;
};

}  // namespace ringtune
