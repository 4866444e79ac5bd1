// Runs the rounds of a step schedule: posts a batch, waits for the other ranks, runs it when all agreed; takes part in
// the rounds that this rank has declined; finds out who does not come.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "control/negotiator.h"
#include "runtime/completions.h"
#include "runtime/control_plane.h"
#include "runtime/engine_status.h"
#include "runtime/executor.h"
#include "runtime/process_set_table.h"
#include "runtime/stall_reporter.h"
#include "runtime/statistics.h"
#include "transport/fabric.h"

namespace ringtune {

/// What the rounds are run with; all borrowed.
struct ScheduleParts {
  Fabric& fabric;
  ControlPlane* control;  // null in a job of one
  Negotiator& negotiator;
  ProcessSetTable& sets;
  Executor& executor;
  Completions& completions;
  StallReporter& stall_reporter;
  Counters& counters;
  EngineStatus& status;
};

struct ScheduleLimits {
  StallLimits stall;
  std::int64_t idle_timeout_ns = 0;  // a round over links in which no byte moves for so long fails; 0 = never
};

/// For the driving thread but where said. Blocks only where said. Throws what collectives throw, and Timeout for a
/// round whose ranks do not come.
class ScheduleRunner {
 public:
  ScheduleRunner(const ScheduleParts& parts, const ScheduleLimits& limits);

  /// A schedule begins: connects what its batches need. Blocks; all ranks come by.
  void begin(const BeginScheduleAction& schedule);
  /// Ends what was declined before; that blocks, but not for long.
  void post(const RoundAction& round, std::int64_t now_ns);
  /// Whether the posted round is over, having run or not. In shared memory it blocks for the other ranks until the
  /// deadline.
  bool resume(Deadline deadline);
  /// Whether all ranks of the posted round have agreed, if that is known by the deadline. Then end() follows.
  [[nodiscard]] std::optional<bool> agreed(Deadline deadline);
  /// Runs the round if all ranks have agreed. When that was done.
  std::int64_t end(bool agreed);

  /// Votes against the next round of a set; over links that goes on until drained().
  void decline(const DeclineAction& round);
  /// Moves declined rounds on; true when something was moved.
  bool advance_declined() { return links_.advance_declined(); }
  [[nodiscard]] bool drained() const noexcept { return links_.drained(); }
  /// Ends the part of this rank in rounds that it has declined, before anything else goes over the links. Blocks, but
  /// not for long: all ranks of the round have left the schedule or are in that round by now.
  void drain();

  [[nodiscard]] bool posted() const noexcept { return parts_.negotiator.round_posted(); }
  /// The posted round is in shared memory: resume() waits for its news, and nothing else does.
  [[nodiscard]] bool waits_in_shm_group() const noexcept { return posted() && !on_links(); }
  /// While a round is posted this rank must receive messages and pass them on (schedule_follower.h).
  [[nodiscard]] bool receives() const noexcept { return on_links() || parts_.negotiator.receives_in_rounds(); }
  [[nodiscard]] std::int64_t since_ns() const noexcept { return since_ns_; }
  /// When a posted round over links must be looked at though nothing has moved.
  [[nodiscard]] Deadline deadline() const noexcept;
  /// Which round of the schedule's batches is under way; none outside a schedule.
  [[nodiscard]] std::optional<std::uint64_t> pass() const noexcept;
  /// In a schedule: another rank has posted the next batch in shared memory, so that it waits for this one.
  [[nodiscard]] bool awaited() const { return parts_.executor.host().awaited(communicator()); }
  /// In a schedule: nothing is posted, and the next batch is one in shared memory, which can be left to a caller.
  [[nodiscard]] bool can_hold_back() const { return !posted() && parts_.executor.host().shares_memory(communicator()); }

  /// Global ranks that the posted round waits for. Over links only those whose messages have not reached this rank.
  [[nodiscard]] std::vector<int> absent() const { return votes_->absent(communicator()); }
  [[nodiscard]] bool holds(const WaitQuery& query) const;
  /// The posted round, which the coordinator does not know.
  [[nodiscard]] Stall stall() const;
  /// Any thread: of the newest round that was posted.
  [[nodiscard]] std::uint64_t token() const noexcept { return token_.load(std::memory_order_relaxed); }

 private:
  [[nodiscard]] bool on_links() const noexcept { return votes_ == &links_; }  // the newest round
  [[nodiscard]] Communicator& communicator() const;
  [[nodiscard]] BatchContext context() const;
  void watch();
  [[nodiscard]] std::vector<int> missing();
  [[nodiscard]] std::int64_t longest_ns() const noexcept;

  ScheduleParts parts_;
  ScheduleLimits limits_;
  std::vector<std::string> hosts_;
  LinkPath& links_;
  HostPath* votes_ = nullptr;        // by which the newest round is agreed on
  BatchPath* path_ = nullptr;        // by which its batch travels
  std::vector<OperationPtr> batch_;  // of the posted round, as the next ones
  std::uint32_t id_ = 0;
  std::int64_t since_ns_ = 0;
  std::int64_t reported_ns_ = 0;
  std::int64_t asked_ns_ = 0;  // who is missing in it
  // Relaxed: read by the thread that reports stalls, for which a moment makes no difference.
  std::atomic<std::uint64_t> token_{0};
};

}  // namespace ringtune
