// The Waker of a rank: one word that may lie in memory shared with the other ranks of the host.
//
// The word holds a counter and, in its two lowest bits, how somebody sleeps on it:
//
//   bits 31..2  number of notifications (wraps)    bit 1  asleep in epoll (sockets)    bit 0  asleep on the futex
//
// A sleeper sets its bit with a compare-and-swap that succeeds only while the counter still equals its ticket. A
// notifier advances the counter and clears the bits in one compare-and-swap, and makes a system call only for the bits
// that it cleared. As everything happens on one atomic word, there is an order of all these steps: either the notifier
// came first, then the sleeper's swap fails and it returns; or the sleeper came first, then the notifier saw its bit.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "base/cores.h"
#include "base/fd.h"
#include "transport/memory.h"
#include "transport/waker.h"

namespace ringtune {

struct alignas(64) WakerWord {
  static constexpr std::uint32_t kFutexSleeper = 1;
  static constexpr std::uint32_t kSocketSleeper = 2;
  static constexpr std::uint32_t kSleepers = kFutexSleeper | kSocketSleeper;
  static constexpr std::uint32_t kTick = 4;

  std::atomic<std::uint32_t> value{0};

  /// Advances the counter and wakes a sleeping thread; `doorbell` is the write end of the sleeper's pipe. Never blocks.
  void ring(int doorbell) noexcept;
};

/// Who may ring a waker: threads of this process, or also the other ranks of this host (costs descriptors).
enum class WakerReach : std::uint8_t { kProcess, kHost };

/// How long a rank may spin whose peers on this host have cores such as these, its own among them: 0 unless all can run
/// at once, as spinning would take the core from the peer that is waited for. The same on all of them.
[[nodiscard]] std::int64_t default_spin_ns(std::span<const CoreSet> ranks) noexcept;

/// Where the peers of this host find the waker: memory and pipe are opened through /proc/<pid>/fd/<number>.
struct WakerAddress {
  int pid = 0;
  int memory_fd = -1;
  int doorbell_fd = -1;
  std::uint64_t token = 0;  // proves that the number still means this waker
};

/// Owns the word, the doorbell pipe and (from the first watch() on) an epoll set. prepare/wait/notify/watch/unwatch
/// from any thread. Several threads may wait: one of them polls the sockets, the others sleep on the word and take
/// over.
class SharedWaker final : public Waker {
 public:
  /// `spin_ns`: how long a wait looks at the word before it blocks, 0 = never. Spinning stops by itself while it does
  /// not pay (long waits, no free core), so an idle rank costs nothing. Throws Error when the kernel gives no memory or
  /// descriptors.
  SharedWaker(WakerReach reach, std::int64_t spin_ns);

  [[nodiscard]] std::uint32_t prepare() noexcept override;
  void wait(std::uint32_t ticket, Deadline deadline) override;
  void notify() noexcept override;
  void watch(int fd, bool want_write) override;
  void unwatch(int fd) noexcept override;

  /// Only for kHost.
  [[nodiscard]] WakerAddress address() const noexcept;
  /// Before the first wait only: the fabric knows the ranks of the host after the rendezvous.
  void set_spin_ns(std::int64_t spin_ns) noexcept { spin_ns_ = spin_ns; }

 private:
  [[nodiscard]] bool changed(std::uint32_t ticket) const noexcept;
  [[nodiscard]] bool spin(std::uint32_t ticket, std::int64_t until_ns) const noexcept;
  void learn_from_sleep(bool spun, std::int64_t waited_ns) noexcept;
  bool announce_sleep(std::uint32_t ticket, std::uint32_t bit, std::uint32_t& value) noexcept;
  void sleep_on_word(std::uint32_t ticket, Deadline deadline);
  void sleep_on_sockets(std::uint32_t ticket, Deadline deadline);
  void drain_doorbell() noexcept;
  void open_doorbell();
  void open_epoll();

  std::int64_t spin_ns_;
  std::atomic<int> spin_credit_;  // > 0: worth a try; relaxed, as it is only a hint of one wait to the next
  Fd memory_fd_;
  Mapping memory_;
  WakerWord* word_;  // in memory_
  Fd doorbell_read_;
  Fd doorbell_write_;
  Fd epoll_;
  std::atomic<int> watched_{0};
  std::mutex setup_;    // guards the opening of epoll_
  std::mutex polling_;  // held by the one thread that sleeps in epoll
};

/// The bell of a peer process on this host. Owns its mapping and its end of the pipe.
class PeerBell final : public Bell {
 public:
  /// Throws Error (with the reason) when the peer's memory cannot be opened from here.
  explicit PeerBell(const WakerAddress& address);
  void notify() noexcept override { word_->ring(doorbell_.get()); }

 private:
  Fd doorbell_;
  Mapping memory_;
  WakerWord* word_;
};

}  // namespace ringtune
