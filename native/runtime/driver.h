// Who turns the engine: a caller that waits for its operation, so that a blocking call wakes no other thread, and else
// the cycle thread, which sleeps when there is nothing to do.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "base/clock.h"
#include "runtime/engine.h"
#include "runtime/overlap_policy.h"
#include "runtime/ticket_table.h"

namespace ringtune {

struct DriverOptions {
  Overlap overlap = Overlap::kAuto;
  int thread_affinity = -1;  // core of the cycle thread
};

/// Borrows the engine and its parts. Public methods may be called from any thread.
class Driver {
 public:
  /// Starts the cycle thread.
  Driver(Engine& engine, const EngineParts& parts, const DriverOptions& options);
  ~Driver();
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  /// `bytes` were submitted. Wakes the cycle thread only if it would not come by itself within the cycle time; not for
  /// a caller that blocks, if it is `awaited` by the thread that submits.
  void submitted(std::size_t bytes, bool awaited = true) noexcept;
  /// This thread waits for what it submits from here to the end, and drives it then: nobody else is woken. May be
  /// nested.
  static void begin_blocking() noexcept;
  /// What was not waited for after all is the cycle thread's.
  void end_blocking() noexcept;
  /// Blocks until the operation is done, driving the engine meanwhile if nobody else does; nothing is held back.
  /// False at the deadline. Does not rethrow the operation's error.
  [[nodiscard]] bool wait(Operation& operation, Deadline deadline);
  /// A collective that is the schedule's whole next batch, from begin to end on this thread: when it ended, 0 when it
  /// has not. Then `ticket` is its operation's, which goes on or holds its result, or 0: it could not even begin. Only
  /// one with a ticket tells its listener.
  /// Until all ranks have come it blocks no longer than to the deadline and a wait's spinning. Throws as
  /// TicketTable::submit.
  std::int64_t run_alone(const PersistentRequest& persistent, const Memory& memory, std::int64_t now_ns,
                         Deadline deadline, Ticket& ticket);

  /// Somebody blocks on an operation in flight without driving: nothing is held back meanwhile. Every begin has its
  /// end.
  void begin_waiting() noexcept;
  void end_waiting() noexcept { status_.end_waiting(); }
  /// A caller asks about an operation, done or not, and waits for it if it is not: that is his to drive.
  void asked() noexcept;
  /// The same of one who goes on: it is no longer held back.
  const Operation& asked_for(const Operation& operation) noexcept;
  /// How many threads of each rank compute.
  void set_compute_threads(int threads) noexcept;

  /// Wakes the thread that sleeps in the engine: the cycle thread, or a caller that drives. For mail that cannot wait.
  void nudge() noexcept;
  /// Leaves the job and ends the thread; on rank 0 after all others have left, at most until the deadline. Idempotent.
  /// `how` and `failed`: see Departure.
  void leave(Deadline deadline, const std::string& how = "", bool failed = false);

 private:
  enum class Parked : std::uint8_t { kNo, kHoldsOff, kMustRun };
  struct Seen {  // before the cycle thread found a caller driving
    std::uint32_t calls;
    std::uint32_t stops;
  };

  void run() noexcept;
  bool turn() noexcept;
  [[nodiscard]] bool holds_back() noexcept;
  void rest(std::uint32_t waker_ticket, Deadline deadline);
  void call() noexcept;
  void park(const Seen& seen) noexcept;
  void drive(Operation& operation, Deadline deadline) noexcept;
  bool try_drive() noexcept;
  void stop_driving() noexcept;

  Engine& engine_;
  Fabric& fabric_;
  TicketTable& tickets_;
  Mailbox& mailbox_;
  EngineStatus& status_;
  const Overlap overlap_;
  int neighbours_;  // ranks of this host

  // Who drives, and how the cycle thread sleeps meanwhile (see park).
  std::mutex drive_;                      // held while the engine is turned: guards it
  OverlapPolicy overlap_policy_;          // guarded by drive_
  std::atomic<std::uint32_t> calls_{0};   // upon the cycle thread, which sleeps on it
  std::atomic<std::uint32_t> stops_{0};   // of callers, that they drive
  std::atomic<std::uint32_t> cycles_{0};  // of callers, in which everything had its turn
  std::atomic<Parked> parked_{Parked::kNo};
  bool must_run_ = false;               // the cycle thread's own, as the next
  std::int64_t hold_off_until_ns_ = 0;  // 0 = it has driven since it was parked last

  // Hints between callers and whoever drives; relaxed: a stale one costs one wake or at most one cycle.
  std::atomic<bool> crowded_{false};          // no core to spare for an exchange in the background
  std::atomic<bool> held_{false};             // the cycle thread sleeps although something is in flight
  std::atomic<std::int64_t> asked_ns_{0};     // by a caller, the first time in a burst; 0 = not yet
  std::atomic<std::int64_t> quiet_bytes_{0};  // what may be submitted without waking the cycle thread
  std::thread thread_;
};

}  // namespace ringtune
