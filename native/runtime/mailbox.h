// Mail for the thread that turns the engine: what other threads of this rank want of it, and which losses end the job.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "control/messages.h"
#include "fusion/knobs.h"

namespace ringtune {

/// Thread-safe; locks for a few instructions but where said. Nobody is woken: who cannot wait until the engine is
/// turned anyway nudges (Driver::nudge).
class Mailbox {
 public:
  struct Mail {
    std::vector<Knobs> proposals = {};
    std::vector<StepReport> reports = {};
    std::uint32_t looks = 0;  // at rank 0's clock that were asked for, so far
  };
  /// What ends the job, before any error that follows from it.
  struct Loss {
    std::exception_ptr error;
    bool known = false;  // to the other ranks
  };

  // Any thread.
  /// Returns the version of the knobs that the change will carry.
  std::uint32_t propose(const Knobs& knobs);
  void report(const StepReport& report);
  /// The number of this look.
  std::uint32_t request_look();
  /// This rank leaves the job, at the deadline at the latest.
  void leave(Departure departure, Deadline deadline);
  /// A peer or a device is lost. The first loss counts.
  void lose(std::exception_ptr error, bool known);

  // The driving thread.
  /// Relaxed: a hint. What is handed in at this moment has its turn afterwards.
  [[nodiscard]] bool has_mail() const noexcept { return mail_.load(std::memory_order_relaxed); }
  /// What has come since the last call, if anything has.
  [[nodiscard]] std::optional<Mail> take();
  /// Acquire: who sees it sees the deadline.
  [[nodiscard]] bool leave_requested() const noexcept { return leave_requested_.load(std::memory_order_acquire); }
  [[nodiscard]] Deadline leave_deadline() const noexcept {
    return Deadline::at(leave_deadline_ns_.load(std::memory_order_relaxed));
  }
  [[nodiscard]] Departure departure() const;
  /// Blocks so long for one to be reported.
  [[nodiscard]] std::optional<Loss> loss(std::int64_t wait_ns);

 private:
  mutable std::mutex mutex_;  // guards what follows
  Mail waiting_;
  std::uint32_t proposed_version_ = 0;
  Departure departure_;
  std::optional<Loss> loss_;
  std::condition_variable lost_;
  std::atomic<bool> mail_{false};  // set with the mutex held, release: it makes a hint of what lies under the mutex
  std::atomic<bool> leave_requested_{false};
  std::atomic<std::int64_t> leave_deadline_ns_{0};
};

}  // namespace ringtune
