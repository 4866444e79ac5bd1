// What a thread of this rank sleeps on: a futex word, or poll() over sockets when there are any.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"

namespace ringtune {

/// Something that can be rung to say "look again": this rank's Waker, or the bell of a peer on this host.
class Bell {
 public:
  virtual ~Bell() = default;
  /// Any thread; never blocks; no system call unless somebody sleeps.
  virtual void notify() noexcept = 0;
};

/// One per rank. `notify` is callable from any thread, and peers on this host ring it through shared memory.
/// Protocol of a waiter: ticket = prepare(); look for work; if none, wait(ticket, ...). A notify between the two makes
/// the wait return at once, so no wake-up is lost.
class Waker : public Bell {
 public:
  [[nodiscard]] virtual std::uint32_t prepare() noexcept = 0;
  /// Returns when notified since `ticket`, when a watched socket has a new event, at the deadline, and now and then for
  /// no reason. Spins for a few microseconds first only when the machine has a core to spare (see spin_ns), then
  /// blocks.
  virtual void wait(std::uint32_t ticket, Deadline deadline) = 0;
  /// Sockets whose readiness also ends wait(). Edge-triggered: only news end a wait, so a socket that nobody reads now
  /// does not keep the rank awake; a reader drains (to EAGAIN or a short read) before it waits. `want_write`: also when
  /// a blocked send can go on. Watching a watched fd changes `want_write`. Throw Error when the kernel refuses.
  virtual void watch(int fd, bool want_write) = 0;
  virtual void unwatch(int fd) noexcept = 0;
};

}  // namespace ringtune
