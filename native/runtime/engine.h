// The engine of a rank: negotiates, and dispatches what was decided. One thread at a time turns it (driver.h).
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "control/negotiator.h"
#include "runtime/clock_looks.h"
#include "runtime/completions.h"
#include "runtime/control_plane.h"
#include "runtime/engine_status.h"
#include "runtime/executor.h"
#include "runtime/mailbox.h"
#include "runtime/process_set_table.h"
#include "runtime/schedule_runner.h"
#include "runtime/stall_reporter.h"
#include "runtime/statistics.h"
#include "runtime/ticket_table.h"
#include "runtime/wait_queries.h"
#include "trace/tracer.h"
#include "transport/fabric.h"

namespace ringtune {

struct EngineOptions {
  NegotiatorOptions negotiator;
  std::int64_t connect_timeout_ns = 0;
  std::int64_t idle_timeout_ns = 0;
  AlgorithmTable algorithms;
};

/// What an engine shares with those who submit, wait and ask; all borrowed.
struct EngineParts {
  Fabric& fabric;
  TicketTable& tickets;
  Counters& counters;
  Tracer& tracer;
  Mailbox& mailbox;
  WaitQueries& queries;
  EngineStatus& status;
  DevicePaths* data_paths;  // carry what goes from GPU to GPU; null: nothing does
};

/// For the driving thread but where said.
class Engine {
 public:
  /// Connects the links. Blocks; throws Timeout naming a peer that does not connect.
  Engine(const EngineOptions& options, const EngineParts& parts);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Everything has its turn once; true when something was done, so that another cycle may find more. `hold_back`: what
  /// callers have submitted is left to them. Blocks while a batch is executed. Throws what ends the job.
  bool cycle(bool hold_back = false);
  /// When the engine must be turned if nothing happens.
  [[nodiscard]] Deadline next_turn() const noexcept;
  /// Bytes that may become ready before what is ready must be sent.
  [[nodiscard]] std::size_t bundle_room() const noexcept { return negotiator_.bundle_room(); }
  /// Whether that collective is all there is to do: then run_inline() may follow.
  [[nodiscard]] bool expects_alone(const PersistentRequest& persistent) const noexcept;
  /// When it ended; 0 and the ticket when it goes on since not all ranks have come by the deadline, in the round that
  /// is posted now or without the schedule, or when what it has gathered did not fit where it was to go. `listener`,
  /// null or borrowed, is called when one that has a ticket is done.
  std::int64_t run_inline(Operation& operation, FinishListener* listener, Deadline deadline, Ticket& ticket);
  [[nodiscard]] ScheduleRunner& schedule() noexcept { return schedule_; }

  /// This rank has left, or its time to do so is over: depart() follows.
  [[nodiscard]] bool finished();
  void depart() noexcept;
  /// Everything in flight fails with `error`, here and, unless this rank departs, on the other ranks.
  void stop(std::exception_ptr error) noexcept;
  /// By stop(): nothing is driven any more.
  [[nodiscard]] bool ended() const noexcept { return ended_; }

  // Any thread.
  /// A peer died (monitor thread): everything in flight fails.
  void peer_lost(int rank, const std::string& reason) noexcept;
  /// A GPU of this rank has failed: everything in flight fails, here and on the other ranks.
  void device_failed(const std::exception_ptr& error) noexcept;
  [[nodiscard]] StallReporter& stall_reporter() noexcept { return stall_reporter_; }
  [[nodiscard]] const ClockLooks& clock_looks() const noexcept { return clock_looks_; }
  /// Its thread-safe part: who is in which set.
  [[nodiscard]] const ProcessSetTable& process_sets() const noexcept { return sets_; }
  void record_pieces(bool on) noexcept { executor_.record_pieces(on); }

 private:
  void take_mail();
  void take_submitted();
  bool take_received();
  void answer_questions();
  void perform(std::span<const Action> actions);
  void execute(const ExecuteAction& action, std::span<const OperationPtr> batch);
  void apply(const SetAction& action);
  [[nodiscard]] RankState own_state() const;  // any thread

  EngineOptions options_;
  EngineParts parts_;
  ProcessSetTable sets_;
  std::unique_ptr<ControlPlane> control_;  // null in a job of one
  Negotiator negotiator_;
  Executor executor_;
  Completions completions_;
  StallReporter stall_reporter_;
  ScheduleRunner schedule_;
  ClockLooks clock_looks_;
  bool leaving_ = false;
  bool ended_ = false;
  bool decided_ = false;  // the error that ends it: the other ranks know it
};

/// "rank 1 on host b"
[[nodiscard]] std::string own_name(const Fabric& fabric);
/// Records the present knobs as a KNOBS event.
void record_knobs(const EngineStatus& status, Tracer& tracer);
/// Records the ranks of an elastic job's generation as a GENERATION event.
void record_generation(const Generation& generation, Tracer& tracer);

}  // namespace ringtune
