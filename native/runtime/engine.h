// The engine of a rank: one loop that negotiates, schedules and executes. The thread that holds the drive mutex turns
// it: a caller that waits for its operation, so that a blocking call wakes no other thread, and else the cycle thread,
// which sleeps when there is nothing to do.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "collective/communicator.h"
#include "control/negotiator.h"
#include "runtime/clock_sync.h"
#include "runtime/control_plane.h"
#include "runtime/executor.h"
#include "runtime/overlap_policy.h"
#include "runtime/process_set_table.h"
#include "runtime/stall_reporter.h"
#include "runtime/statistics.h"
#include "runtime/ticket_table.h"
#include "trace/tracer.h"
#include "transport/fabric.h"

namespace ringtune {

struct EngineOptions {
  NegotiatorOptions negotiator;
  std::int64_t connect_timeout_ns = 0;
  std::int64_t idle_timeout_ns = 0;
  int thread_affinity = -1;
  AlgorithmTable algorithms;
  Overlap overlap = Overlap::kAuto;
  DevicePaths* data_paths = nullptr;  // borrowed: carry what goes from GPU to GPU
};

/// Borrows the fabric, the tickets, the counters and the tracer. Public methods may be called from any thread.
class Engine {
 public:
  /// Connects the links and starts the thread. Throws Timeout naming a peer that does not connect.
  Engine(const EngineOptions& options, Fabric& fabric, TicketTable& tickets, Counters& counters, Tracer& tracer);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

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

  /// Somebody blocks on an operation in flight without driving: nothing is held back meanwhile. Every begin has its
  /// end.
  void begin_waiting() noexcept;
  void end_waiting() noexcept { waiting_callers_.fetch_sub(1, std::memory_order_relaxed); }

  /// A caller asks about an operation, done or not, and waits for it if it is not: that is his to drive.
  void asked() noexcept;
  /// The same of one who goes on: it is no longer held back.
  const Operation& asked_for(const Operation& operation) noexcept;
  /// How many threads of each rank compute.
  void set_compute_threads(int threads) noexcept;

  /// A collective that is the schedule's whole next batch, from begin to end on this thread: when it ended, 0 when it
  /// has not. Then `ticket` is its operation's, which goes on or holds its result, or 0: it could not even begin.
  /// Blocks no longer than a wait of the shared-memory group spins until all ranks have come. Throws as
  /// TicketTable::submit.
  std::int64_t run_alone(const PersistentRequest& persistent, const Memory& memory, std::int64_t now_ns,
                         Ticket& ticket);

  std::uint32_t propose(const Knobs& knobs);
  [[nodiscard]] Knobs knobs() const;
  [[nodiscard]] std::uint32_t knobs_version() const noexcept { return knobs_version_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint32_t step() const noexcept { return step_.load(std::memory_order_relaxed); }
  /// A step ended: `report` for the coordinator, the next step's number for the spans.
  void step_ended(const StepReport& report, bool told);  // to the other ranks
  [[nodiscard]] StepReport world_step() const;
  /// Whether this rank follows a schedule; a hint to other threads.
  [[nodiscard]] bool in_schedule() const noexcept { return in_schedule_.load(std::memory_order_relaxed); }

  /// Looks at rank 0's clock and records a CLOCK event. Returns at once; the number is for wait_for_look.
  std::uint32_t look_at_clock();
  /// Blocks until that look has been recorded, or the deadline.
  void wait_for_look(std::uint32_t number, Deadline deadline) const;
  /// Records the present knobs as a KNOBS event.
  void record_knobs() const;
  /// Records the ranks of an elastic job's generation as a GENERATION event.
  void record_generation() const;
  /// How far this rank has come, without the step. Any thread.
  [[nodiscard]] GenerationProgress progress() const noexcept;
  /// Its thread-safe part: who is in which set.
  [[nodiscard]] const ProcessSetTable& process_sets() const noexcept { return *sets_; }
  void mark_cycles(bool on) noexcept { mark_cycles_.store(on, std::memory_order_relaxed); }
  void record_pieces(bool on) noexcept { executor_->record_pieces(on); }

  /// The ranks that an operation waits for, as far as rank 0 or the round of a schedule knows; none when that is not
  /// known at the deadline. Blocks, first for as long as ready requests of other ranks may be held back on their way.
  [[nodiscard]] std::vector<int> awaited(const Request& request, Deadline deadline);

  /// A question of another rank about a stall (monitor thread).
  void asked(int from, std::uint32_t number, const Bytes& question) noexcept {
    stall_reporter_->asked(from, number, question);
  }
  /// A peer died (monitor thread): everything in flight fails.
  void peer_lost(int rank, const std::string& reason) noexcept;
  /// A GPU of this rank has failed: everything in flight fails, here and on the other ranks.
  void device_failed(const std::exception_ptr& error) noexcept;
  /// Leaves the job and ends the thread; on rank 0 after all others have left, at most until the deadline. Idempotent.
  /// `how` and `failed`: see Departure.
  void leave(Deadline deadline, const std::string& how = "", bool failed = false);

 private:
  enum class Parked : std::uint8_t { kNo, kHoldsOff, kMustRun };
  struct Seen {  // before the cycle thread found a caller driving
    std::uint32_t calls;
    std::uint32_t stops;
  };

  void nudge() noexcept;
  void run() noexcept;
  bool turn() noexcept;
  [[nodiscard]] bool holds_back() noexcept;
  [[nodiscard]] Deadline next_turn() const noexcept;
  [[nodiscard]] bool waits_in_shm_group() const noexcept;
  void rest(std::uint32_t waker_ticket, Deadline deadline);
  void call() noexcept;
  void park(const Seen& seen) noexcept;
  void drive(Operation& operation, Deadline deadline) noexcept;
  [[nodiscard]] bool expects_alone(const PersistentRequest& persistent) const noexcept;
  std::int64_t run_inline(Operation& operation, Ticket& ticket);
  bool try_drive() noexcept;
  void stop_driving() noexcept;
  bool cycle(bool hold_back = false);
  void take_mail();
  void take_submitted();
  bool take_received();
  void handle(Received&& received);
  void handle(const ClockPing& ping, int from);
  void handle(WaitQuery query, int from);
  void answer_questions();
  void note_seen(std::uint32_t number, std::vector<int> missing);
  void answered(std::uint32_t number, std::vector<int> missing);
  bool perform(std::vector<Action> actions);
  void execute(const ExecuteAction& action, std::span<const OperationPtr> batch);
  void finish(std::span<const OperationPtr> batch, const BatchContext& context);
  void finish_refused(std::span<const OperationPtr> batch);
  [[nodiscard]] Communicator& schedule_communicator() const { return sets_->communicator(negotiator_.schedule_set()); }
  [[nodiscard]] bool receives_in_round() const noexcept {
    return executor_->round_on_links() || negotiator_.receives_in_rounds();
  }
  [[nodiscard]] BatchContext round_context() const;
  void post_round(const RoundAction& action, std::int64_t now_ns);
  bool resume_round(Deadline deadline);
  std::int64_t end_round(bool agreed);
  void watch_round();
  [[nodiscard]] std::int64_t longest_round_ns() const noexcept;
  [[nodiscard]] Deadline round_deadline() const noexcept;
  void drain();
  void apply(const ApplyKnobsAction& action);
  void apply(const SetAction& action);
  void finish_decided(const std::string& name, std::int64_t number);
  void fail_one(const FailAction& action);
  void report_stalls(std::span<const StallAction> actions, bool entangled);
  [[nodiscard]] Stall round_stall(std::int64_t now_ns) const;
  [[nodiscard]] std::vector<int> missing_in_round(std::int64_t now_ns);
  [[nodiscard]] RankState own_state() const;
  void send_clock_ping();
  void record_clock(const ClockSample& sample);
  void ran(std::uint32_t batch) noexcept;
  [[nodiscard]] bool finished();
  [[nodiscard]] std::string own_name() const;
  void stop(std::exception_ptr error) noexcept;

  EngineOptions options_;
  Fabric& fabric_;
  TicketTable& tickets_;
  Counters& counters_;
  Tracer& tracer_;
  bool shares_clock_;  // same host as rank 0
  int neighbours_;     // ranks of this host

  // Who drives, and how the cycle thread sleeps meanwhile (see park).
  std::mutex drive_;
  std::atomic<std::uint32_t> calls_{0};   // upon the cycle thread, which sleeps on it
  std::atomic<std::uint32_t> stops_{0};   // of callers, that they drive
  std::atomic<std::uint32_t> cycles_{0};  // of callers, in which everything had its turn
  std::atomic<Parked> parked_{Parked::kNo};
  bool must_run_ = false;               // the cycle thread's own, as the next
  std::int64_t hold_off_until_ns_ = 0;  // 0 = it has driven since it was parked last

  // Guarded by drive_ from here to the mail.
  bool ended_ = false;    // by an error: nothing is driven any more
  bool decided_ = false;  // that error was decided: the other ranks know it
  Negotiator negotiator_;
  std::unique_ptr<ControlPlane> control_;
  std::unique_ptr<ProcessSetTable> sets_;
  Communicator* world_ = nullptr;  // of the set of all ranks
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<StallReporter> stall_reporter_;
  OverlapPolicy overlap_policy_;
  ClockSync clock_;
  std::int64_t last_look_ns_ = 0;
  std::int64_t look_interval_ns_ = 250'000'000;  // grows: see cycle()
  std::uint32_t looks_wanted_ = 0;
  bool leaving_ = false;
  std::vector<OperationPtr> round_;  // of the schedule, that is posted
  std::uint32_t round_id_ = 0;
  std::int64_t round_since_ns_ = 0;
  std::int64_t round_reported_ns_ = 0;
  std::int64_t round_asked_ns_ = 0;  // who is missing in it
  std::size_t in_flight_bytes_ = 0;  // of operations that were taken and are not done

  // Mail for the driving thread, and what it publishes.
  mutable std::mutex mutex_;
  std::vector<Knobs> proposals_;
  std::vector<StepReport> reports_;
  std::uint32_t proposed_version_ = 0;
  std::uint32_t looks_requested_ = 0;
  Departure departure_;
  std::vector<WaitQuery> questions_;
  struct WaitAnswer {
    bool known = false;  // else what this rank has seen itself
    std::vector<int> missing;
  };
  std::map<std::uint32_t, WaitAnswer> answers_;  // by question
  std::uint32_t last_question_ = 0;
  Knobs knobs_;
  StepReport world_step_;
  std::condition_variable lost_said_;
  std::exception_ptr lost_;
  bool lost_known_ = false;  // to the other ranks
  std::atomic<bool> mail_{false};
  std::atomic<bool> asks_{false};  // there are questions
  std::atomic<std::uint32_t> answer_count_{0};
  std::atomic<std::uint32_t> knobs_version_{0};
  std::atomic<bool> in_schedule_{false};
  std::atomic<std::uint32_t> step_{0};
  std::atomic<std::uint64_t> round_token_{0};  // of the newest round that was posted
  std::atomic<std::uint32_t> clock_looks_{0};
  // What the next generation of an elastic job asks for (GenerationProgress).
  std::atomic<std::uint32_t> last_batch_{0};
  std::atomic<std::int64_t> clock_offset_ns_{0};
  std::atomic<std::int64_t> clock_error_ns_{-1};
  std::atomic<int> waiting_callers_{0};
  std::atomic<bool> crowded_{false};          // no core to spare for an exchange in the background
  std::atomic<bool> held_{false};             // the cycle thread sleeps although something is in flight
  std::atomic<std::int64_t> asked_ns_{0};     // by a caller, the first time in a burst; 0 = not yet
  std::atomic<std::int64_t> quiet_bytes_{0};  // what may be submitted without waking the cycle thread
  std::atomic<bool> mark_cycles_{false};
  std::atomic<bool> leave_requested_{false};
  std::atomic<std::int64_t> leave_deadline_ns_{0};
  std::thread thread_;
};

}  // namespace ringtune
