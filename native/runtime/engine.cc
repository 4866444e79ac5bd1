#include "runtime/engine.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>

#include "base/check.h"
#include "base/futex.h"
#include "base/log.h"
#include "runtime/gpu/data_paths.h"
#include "runtime/joined_contribution.h"

namespace ringtune {
namespace {

// Of looks at rank 0's clock, at most: the line through them needs some at the beginning, few later.
constexpr std::int64_t kClockIntervalNs = 10'000'000'000;

thread_local int blocking_calls = 0;  // of this thread

void pin(std::thread& thread, int core) {
  if (core < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(core), &set);
  if (pthread_setaffinity_np(thread.native_handle(), sizeof(set), &set) != 0) {
    log(LogLevel::kWarning, "the cycle thread cannot be bound to core ", core, ": no such core for this process");
  }
}

std::exception_ptr failure_of(const FailAction& action) {
  switch (action.kind) {
    case FailureKind::kInvalidArgument:
      return std::make_exception_ptr(InvalidArgument(action.message));
    case FailureKind::kShutDown:
      return std::make_exception_ptr(ShutDown(action.message));
    case FailureKind::kSomeAbsent:
      return std::make_exception_ptr(SomeAbsent(action.message));
    case FailureKind::kSomeSparse:
      return std::make_exception_ptr(SomeSparse(action.message));
    case FailureKind::kNotByNccl:
      return std::make_exception_ptr(DataPathRefused(action.message, DataPath::kNccl));
    case FailureKind::kNotPacked:
      return std::make_exception_ptr(DataPathRefused(action.message, DataPath::kNcclPacked));
    case FailureKind::kNotByRing:
      return std::make_exception_ptr(DataPathRefused(action.message, DataPath::kRing));
    case FailureKind::kNotWithinHosts:
      return std::make_exception_ptr(DataPathRefused(action.message, DataPath::kHierarchical));
    case FailureKind::kStageOnce:
      return std::make_exception_ptr(DataPathRefused(action.message));
    default:
      return std::make_exception_ptr(Mismatch(action.message));
  }
}

}  // namespace

Engine::Engine(const EngineOptions& options, Fabric& fabric, TicketTable& tickets, Counters& counters, Tracer& tracer)
    : options_(options),
      fabric_(fabric),
      tickets_(tickets),
      counters_(counters),
      tracer_(tracer),
      negotiator_(options.negotiator),
      knobs_(options.negotiator.knobs) {
  step_ = tracer.generation().first_step;
  const std::vector<std::string> hosts = fabric.hosts();
  const std::string& own_host = hosts.at(static_cast<std::size_t>(fabric.rank()));
  shares_clock_ = own_host == hosts.front();
  neighbours_ = static_cast<int>(std::count(hosts.begin(), hosts.end(), own_host));
  set_compute_threads(1);
  const Deadline deadline = Deadline::after(options.connect_timeout_ns);
  if (fabric.size() > 1) control_ = std::make_unique<ControlPlane>(fabric, options.negotiator.fan_out, deadline);
  sets_ =
      std::make_unique<ProcessSetTable>(fabric, CommunicatorOptions{.table = options.algorithms,
                                                                    .connect_timeout_ns = options.connect_timeout_ns,
                                                                    .idle_timeout_ns = options.idle_timeout_ns});
  world_ = &sets_->communicator(0);
  (void)world_->ring();  // a rank that cannot be reached is found out now, not in the first collective
  (void)world_->shm_group();
  options_.negotiator.schedules = fabric.size() > 1;
  options_.negotiator.hosts = hosts;
  negotiator_ = Negotiator(options_.negotiator);
  executor_ = std::make_unique<Executor>(counters, tracer, options.data_paths);
  executor_->set_knobs(knobs_);
  stall_reporter_ = std::make_unique<StallReporter>(fabric, tracer, options.negotiator.stall.warning_ns,
                                                    [this] { return own_state(); });
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "ringtune-cycle");
  pin(thread_, options.thread_affinity);
}

Engine::~Engine() { leave(Deadline::after(0)); }

void Engine::submitted(std::size_t bytes, bool awaited) noexcept {
  if (awaited && blocking_calls > 0) return;
  // While a bundle is held back the cycle thread wakes at the end of the cycle time anyway: a wake per gradient would
  // cost the training thread a system call each. Relaxed: a stale value costs one wake or at most one cycle.
  const auto size = static_cast<std::int64_t>(bytes);
  if (quiet_bytes_.fetch_sub(size, std::memory_order_relaxed) <= size) nudge();
}

void Engine::begin_blocking() noexcept { ++blocking_calls; }

void Engine::end_blocking() noexcept {
  if (--blocking_calls == 0 && tickets_.open() > 0) nudge();
}

std::uint32_t Engine::propose(const Knobs& knobs) {
  std::uint32_t knobs_version = 0;
  {
    const std::lock_guard lock(mutex_);
    proposals_.push_back(knobs);
    knobs_version = ++proposed_version_;
    mail_.store(true, std::memory_order_release);
  }
  nudge();
  return knobs_version;
}

Knobs Engine::knobs() const {
  const std::lock_guard lock(mutex_);
  return knobs_;
}

void Engine::step_ended(const StepReport& report, bool told) {
  step_.store(report.step + 1, std::memory_order_relaxed);
  if (!told) return;
  const std::lock_guard lock(mutex_);
  reports_.push_back(report);
  mail_.store(true, std::memory_order_release);  // travels with the next ready requests: no nudge
}

StepReport Engine::world_step() const {
  const std::lock_guard lock(mutex_);
  return world_step_;
}

std::uint32_t Engine::look_at_clock() {
  std::uint32_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    number = ++looks_requested_;
    mail_.store(true, std::memory_order_release);
  }
  nudge();
  return number;
}

void Engine::wait_for_look(std::uint32_t number, Deadline deadline) const {
  while (true) {
    const std::uint32_t seen = clock_looks_.load(std::memory_order_acquire);
    if (seen >= number || deadline.expired()) return;
    futex_wait(clock_looks_, seen, deadline, FutexScope::kPrivate);
  }
}

/// One round; true when something was done, so that another round may find more. `hold_back`: what callers have
/// submitted is left to them.
bool Engine::cycle(bool hold_back) {
  if (leave_requested_.load(std::memory_order_acquire) && !leaving_) {
    leaving_ = true;
    const std::lock_guard lock(mutex_);
    negotiator_.leave(departure_);
  }
  // While a round is posted this rank begins nothing. In shared memory of all ranks it need not receive messages
  // either. Elsewhere it must pass them on: so ranks that have not come learn that another one has declined
  // (schedule_follower.h). Bytes that a full link has not taken are sent all the same, since the round may need a rank
  // below that waits for them.
  if (asks_.exchange(false, std::memory_order_acquire)) answer_questions();
  if (negotiator_.round_posted() && control_) control_->flush();
  if (negotiator_.round_posted() && !resume_round(Deadline::at(0)) && !receives_in_round()) return false;
  const bool moved = executor_->advance_declined();
  if (mail_.exchange(false, std::memory_order_acquire)) take_mail();
  if (!hold_back) take_submitted();
  negotiator_.set_waiting(waiting_callers_.load(std::memory_order_relaxed) > 0);
  bool worked = (control_ && take_received()) || moved;
  negotiator_.tick(now_ns());
  worked = perform(negotiator_.take_actions()) || worked;
  if (control_) control_->flush();
  in_schedule_.store(negotiator_.in_schedule(), std::memory_order_relaxed);
  const ControlCounters& control = negotiator_.counters();
  counters_.control_messages.store(control.messages, std::memory_order_relaxed);
  counters_.control_bytes.store(control.bytes, std::memory_order_relaxed);
  if (worked && tracer_.recording() && !tracer_.of_group() && control_ && !shares_clock_ &&
      now_ns() - last_look_ns_ > look_interval_ns_) {
    look_at_clock();
    last_look_ns_ = now_ns();
    look_interval_ns_ = std::min(2 * look_interval_ns_, kClockIntervalNs);
  }
  return worked;
}

void Engine::take_mail() {
  std::vector<Knobs> proposals;
  std::vector<StepReport> reports;
  std::uint32_t looks = 0;
  {
    const std::lock_guard lock(mutex_);
    proposals.swap(proposals_);
    reports.swap(reports_);
    looks = looks_requested_;
    world_step_ = negotiator_.world_step();
  }
  for (const Knobs& knobs : proposals) negotiator_.propose(knobs);
  for (const StepReport& report : reports) negotiator_.report_step(report);
  if (looks == looks_wanted_) return;
  looks_wanted_ = looks;
  if (shares_clock_) {
    record_clock({.at_ns = now_ns()});
  } else if (!clock_.active()) {
    clock_.begin();
    send_clock_ping();
  }
}

void Engine::take_submitted() {
  for (const OperationPtr operation : tickets_.take_submitted()) {
    in_flight_bytes_ += operation->prepared->bytes;
    // The request lives in what the operation holds: one count for both.
    negotiator_.local_ready(SharedRequest(operation->prepared, &operation->prepared->request), operation->submitted_ns,
                            reinterpret_cast<Tag>(operation));
  }
}

bool Engine::take_received() {
  bool any = false;
  for (Received& received : control_->receive()) {
    any = true;
    handle(std::move(received));
  }
  return any;
}

void Engine::handle(Received&& received) {
  if (const auto* ping = std::get_if<ClockPing>(&received.message)) {
    handle(*ping, received.from);
    return;
  }
  if (auto* query = std::get_if<WaitQuery>(&received.message)) {
    handle(std::move(*query), received.from);
    return;
  }
  negotiator_.peer_message(received.from, std::move(received.message), received.bytes, now_ns());
}

void Engine::handle(const ClockPing& ping, int from) {
  const std::int64_t now = now_ns();
  if (fabric_.rank() == 0) {
    control_->send(from, encode(ClockPing{ping.worker_ns, now, ping.rank}));
  } else if (const auto sample = clock_.answered(ping.worker_ns, ping.coordinator_ns, now)) {
    record_clock(*sample);
  } else if (clock_.active()) {
    send_clock_ping();
  }
}

void Engine::send_clock_ping() {
  control_->send(control_->parent(), encode(ClockPing{now_ns(), 0, fabric_.rank()}));
  control_->flush();
}

bool Engine::perform(std::vector<Action> actions) {
  // All batches of one decision are agreed at this moment, though they run one after another: the difference is what
  // the timeline shows as queueing.
  const std::int64_t agreed_ns = now_ns();
  std::vector<std::vector<OperationPtr>> batches;
  for (const Action& action : actions) {
    const auto* execution = std::get_if<ExecuteAction>(&action);
    if (execution == nullptr) continue;
    std::vector<OperationPtr>& batch = batches.emplace_back();
    if (!execution->absent.empty()) continue;  // none of this rank's operations
    for (const std::string& name : execution->names) {
      OperationPtr operation = tickets_.in_flight(execution->process_set, name);
      RINGTUNE_CHECK(operation != nullptr, "tensor '", name, "' was agreed on but is not in flight");
      operation->agreed_ns = agreed_ns;
      batch.push_back(std::move(operation));
    }
  }
  if (!batches.empty() && mark_cycles_.load(std::memory_order_relaxed) && tracer_.recording()) {
    tracer_.record({agreed_ns, agreed_ns, 0, tracer_.intern(""), 0, step_.load(std::memory_order_relaxed),
                    static_cast<std::uint16_t>(knobs_version()), Stage::kCycle, 255});
  }
  std::size_t next_batch = 0;
  std::vector<StallAction> stalls;
  for (const Action& action : actions) {
    if (const auto* message = std::get_if<SendAction>(&action)) {
      control_->send(message->to, message->payload);
      control_->flush();
    } else if (const auto* execution = std::get_if<ExecuteAction>(&action)) {
      execute(*execution, batches[next_batch++]);
    } else if (const auto* round = std::get_if<RoundAction>(&action)) {
      post_round(*round, agreed_ns);
    } else if (std::holds_alternative<DeclineAction>(action)) {
      const auto& decline = std::get<DeclineAction>(action);
      executor_->decline_round(decline, sets_->communicator(decline.batch.front()->process_set));
    } else if (const auto* schedule = std::get_if<BeginScheduleAction>(&action)) {
      drain();
      // In the schedule's order: nobody waits for a rank that waits for it in another set.
      for (const std::vector<SharedRequest>& batch : schedule->batches) {
        executor_->prepare_batch(batch, sets_->communicator(batch.front()->process_set));
      }
    } else if (const auto* change = std::get_if<ApplyKnobsAction>(&action)) {
      apply(*change);
    } else if (const auto* failure = std::get_if<FailAction>(&action)) {
      fail_one(*failure);
    } else if (const auto* set = std::get_if<SetAction>(&action)) {
      apply(*set);
    } else if (const auto* joined = std::get_if<JoinAction>(&action)) {
      finish_decided(joined->name, joined->last_rank);
    } else if (const auto* stall = std::get_if<StallAction>(&action)) {
      stalls.push_back(*stall);
    } else if (const auto* suspicion = std::get_if<SuspicionAction>(&action)) {
      report_stalls(suspicion->tensors, true);
    } else if (const auto* abort = std::get_if<AbortAction>(&action)) {
      decided_ = abort->known;
      throw Timeout(abort->message);
    }
  }
  if (!stalls.empty()) report_stalls(stalls, false);
  return !actions.empty();
}

void Engine::execute(const ExecuteAction& action, std::span<const OperationPtr> batch) {
  if (control_) control_->flush();  // a peer may still wait for a decision: nothing of ours stays behind a long batch
  drain();
  ran(action.batch_id);
  const BatchContext context{sets_->communicator(action.process_set), action.batch_id, knobs_version(),
                             step_.load(std::memory_order_relaxed),   action.rows,     action.process_set};
  if (!action.absent.empty()) {
    executor_->execute(JoinedContribution(action.absent, now_ns()).operations(), context);
    return;
  }
  try {
    executor_->execute(batch, context);
  } catch (const DataPathRefused&) {
    return finish_refused(batch);
  }
  finish(batch, context);
}

BatchContext Engine::round_context() const {
  return {schedule_communicator(),
          round_id_,
          knobs_version(),
          step_.load(std::memory_order_relaxed),
          negotiator_.round_rows(),
          negotiator_.schedule_set(),
          true};
}

void Engine::apply(const ApplyKnobsAction& action) {
  {
    const std::lock_guard lock(mutex_);
    knobs_ = action.knobs;
  }
  knobs_version_.store(action.knobs_version, std::memory_order_relaxed);
  executor_->set_knobs(action.knobs);
  record_knobs();
}

void Engine::fail_one(const FailAction& action) {
  if (tracer_.recording() && !runs_later(action.kind)) {
    tracer_.event("ERROR", "error", now_ns(),
                  "{\"tensor\":" + json_quote(action.name) + ",\"message\":" + json_quote(action.message) + "}");
  }
  const OperationPtr operation = tickets_.in_flight(action.process_set, action.name);
  if (operation == nullptr) return;
  in_flight_bytes_ -= operation->prepared->bytes;
  tickets_.finish({&operation, 1}, failure_of(action));
}

}  // namespace ringtune
