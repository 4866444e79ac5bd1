#include "runtime/engine.h"

#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "runtime/gpu/data_paths.h"
#include "runtime/joined_contribution.h"

namespace ringtune {
namespace {

constexpr std::int64_t kVerdictNs = 500'000'000;  // how long the loss of a link waits for what liveness says of it

EngineOptions completed(EngineOptions options, const Fabric& fabric) {
  options.negotiator.schedules = fabric.size() > 1;
  options.negotiator.hosts = fabric.hosts();
  return options;
}

CommunicatorOptions communicator_options(const EngineOptions& options) {
  return {.table = options.algorithms,
          .connect_timeout_ns = options.connect_timeout_ns,
          .idle_timeout_ns = options.idle_timeout_ns};
}

std::unique_ptr<ControlPlane> connect_control(const EngineOptions& options, Fabric& fabric) {
  if (fabric.size() == 1) return nullptr;
  return std::make_unique<ControlPlane>(fabric, options.negotiator.fan_out,
                                        Deadline::after(options.connect_timeout_ns));
}

/// The operations of every batch in the decisions, which are agreed at this moment, though the batches run one after
/// another: the difference is what the timeline shows as queueing.
std::vector<std::vector<OperationPtr>> batches_of(std::span<const Action> actions, const TicketTable& tickets,
                                                  std::int64_t agreed_ns) {
  std::vector<std::vector<OperationPtr>> batches;
  for (const Action& action : actions) {
    const auto* execution = std::get_if<ExecuteAction>(&action);
    if (execution == nullptr) continue;
    std::vector<OperationPtr>& batch = batches.emplace_back();
    if (!execution->absent.empty()) continue;  // none of this rank's operations
    for (const std::string& name : execution->names) {
      const OperationPtr operation = tickets.in_flight(execution->process_set, name);
      RINGTUNE_CHECK(operation != nullptr, "tensor '", name, "' was agreed on but is not in flight");
      operation->agreed_ns = agreed_ns;
      batch.push_back(operation);
    }
  }
  return batches;
}

bool is_peer_lost(const std::exception_ptr& error) noexcept {
  try {
    std::rethrow_exception(error);
  } catch (const PeerLost&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

std::string own_name(const Fabric& fabric) {
  const int rank = fabric.rank();
  return "rank " + std::to_string(rank) + " on host " + fabric.hosts().at(static_cast<std::size_t>(rank));
}

void record_knobs(const EngineStatus& status, Tracer& tracer) {
  if (!tracer.recording()) return;
  tracer.event(
      "KNOBS", "knobs", now_ns(),
      "{\"knobs_version\":" + std::to_string(status.knobs_version()) + "," + json_members(status.knobs()) + "}");
}

void record_generation(const Generation& generation, Tracer& tracer) {
  std::string tracks;
  for (const int track : generation.tracks) tracks += (tracks.empty() ? "" : ",") + std::to_string(track);
  tracer.event("GENERATION", "generation", now_ns(),
               "{\"generation\":" + std::to_string(generation.number) + ",\"ranks\":[" + tracks +
                   "],\"first_step\":" + std::to_string(generation.first_step) +
                   ",\"first_batch\":" + std::to_string(generation.first_batch) + "}");
}

Engine::Engine(const EngineOptions& options, const EngineParts& parts)
    : options_(completed(options, parts.fabric)),
      parts_(parts),
      sets_(parts.fabric, communicator_options(options)),
      control_(connect_control(options, parts.fabric)),
      negotiator_(options_.negotiator),
      executor_(parts.counters, parts.tracer, parts.data_paths),
      completions_(parts.tickets, parts.tracer),
      stall_reporter_(parts.fabric, parts.tracer, options.negotiator.stall.warning_ns, [this] { return own_state(); }),
      schedule_({parts.fabric, control_.get(), negotiator_, sets_, executor_, completions_, stall_reporter_,
                 parts.counters, parts.status},
                {options.negotiator.stall, options.idle_timeout_ns}),
      clock_looks_(parts.fabric, control_.get(), parts.tracer, parts.status) {
  Communicator& world = sets_.communicator(0);
  (void)world.ring();  // a rank that cannot be reached is found out now, not in the first collective
  (void)world.shm_group();
  executor_.set_knobs(options.negotiator.knobs);
}

bool Engine::cycle(bool hold_back) {
  if (!leaving_ && parts_.mailbox.leave_requested()) {
    leaving_ = true;
    negotiator_.leave(parts_.mailbox.departure());
  }
  answer_questions();
  // While a round is posted this rank begins nothing. In shared memory of all ranks it need not receive messages
  // either. Elsewhere it must pass them on: so ranks that have not come learn that another one has declined
  // (schedule_follower.h). Bytes that a full link has not taken are sent all the same, since the round may need a rank
  // below that waits for them.
  if (schedule_.posted()) {
    if (control_) control_->flush();
    if (!schedule_.resume(Deadline::at(0)) && !schedule_.receives()) return false;
  }
  const bool moved = schedule_.advance_declined();
  take_mail();
  if (!hold_back) take_submitted();
  negotiator_.set_waiting(parts_.status.waited_for());
  const bool received = control_ && take_received();
  negotiator_.tick(now_ns());
  const std::vector<Action> actions = negotiator_.take_actions();
  perform(actions);
  if (control_) control_->flush();
  parts_.status.set_in_schedule(negotiator_.in_schedule());
  const ControlCounters& control = negotiator_.counters();
  parts_.counters.control_messages.store(control.messages, std::memory_order_relaxed);
  parts_.counters.control_bytes.store(control.bytes, std::memory_order_relaxed);
  const bool worked = received || moved || !actions.empty();
  if (worked && control_) clock_looks_.look_again();
  return worked;
}

void Engine::take_mail() {
  const std::optional<Mailbox::Mail> mail = parts_.mailbox.take();
  if (!mail) return;
  parts_.status.set_world_step(negotiator_.world_step());
  for (const Knobs& knobs : mail->proposals) negotiator_.propose(knobs);
  for (const StepReport& report : mail->reports) negotiator_.report_step(report);
  clock_looks_.wanted(mail->looks);
}

void Engine::take_submitted() {
  for (const OperationPtr operation : parts_.tickets.take_submitted()) {
    completions_.taken(*operation);
    // The request lives in what the operation holds: one count for both.
    negotiator_.local_ready(SharedRequest(operation->prepared, &operation->prepared->request), operation->submitted_ns,
                            reinterpret_cast<Tag>(operation));
  }
}

bool Engine::take_received() {
  bool any = false;
  for (Received& received : control_->receive()) {
    any = true;
    if (const auto* ping = std::get_if<ClockPing>(&received.message)) {
      clock_looks_.take(*ping, received.from);
    } else if (auto* query = std::get_if<WaitQuery>(&received.message); query == nullptr) {
      negotiator_.peer_message(received.from, std::move(received.message), received.bytes, now_ns());
    } else if (parts_.fabric.rank() != 0) {
      parts_.queries.answered(query->number, query->missing.ranks());
    } else {
      query->missing = negotiator_.awaited({query->process_set, query->name});
      query->answered = true;
      control_->send(received.from, encode(*query));
    }
  }
  return any;
}

/// The wait queries that this rank can answer itself; the others go to rank 0.
void Engine::answer_questions() {
  for (const WaitQuery& query : parts_.queries.take()) {
    if (schedule_.holds(query) && schedule_.waits_in_shm_group()) {
      parts_.queries.answered(query.number, schedule_.absent());
    } else if (schedule_.holds(query)) {  // this rank sees only whose messages have reached it
      parts_.queries.note_seen(query.number, schedule_.absent());
      stall_reporter_.find_missing(schedule_.stall(),
                                   [&queries = parts_.queries, number = query.number](std::vector<int> missing) {
                                     queries.answered(number, std::move(missing));
                                   });
    } else if (parts_.fabric.rank() == 0) {
      parts_.queries.answered(query.number, negotiator_.awaited({query.process_set, query.name}).ranks());
    } else {
      control_->send(control_->parent(), encode(query));
    }
  }
}

void Engine::perform(std::span<const Action> actions) {
  if (actions.empty()) return;
  const std::int64_t agreed_ns = now_ns();
  const std::vector<std::vector<OperationPtr>> batches = batches_of(actions, parts_.tickets, agreed_ns);
  if (Tracer& tracer = parts_.tracer; !batches.empty() && parts_.status.marks_cycles() && tracer.recording()) {
    tracer.record({agreed_ns, agreed_ns, 0, tracer.intern(""), 0, parts_.status.step(),
                   static_cast<std::uint16_t>(parts_.status.knobs_version()), Stage::kCycle, 255});
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
      schedule_.post(*round, agreed_ns);
    } else if (const auto* decline = std::get_if<DeclineAction>(&action)) {
      schedule_.decline(*decline);
    } else if (const auto* schedule = std::get_if<BeginScheduleAction>(&action)) {
      schedule_.begin(*schedule);
    } else if (const auto* change = std::get_if<ApplyKnobsAction>(&action)) {
      parts_.status.apply(change->knobs, change->knobs_version);
      executor_.set_knobs(change->knobs);
      record_knobs(parts_.status, parts_.tracer);
    } else if (const auto* failure = std::get_if<FailAction>(&action)) {
      completions_.failed(*failure);
    } else if (const auto* set = std::get_if<SetAction>(&action)) {
      apply(*set);
    } else if (const auto* joined = std::get_if<JoinAction>(&action)) {
      completions_.decided(joined->name, joined->last_rank);
    } else if (const auto* stall = std::get_if<StallAction>(&action)) {
      stalls.push_back(*stall);
    } else if (const auto* suspicion = std::get_if<SuspicionAction>(&action)) {
      Stall knot = stall_of(suspicion->tensors);
      knot.entangled = true;
      stall_reporter_.report(std::move(knot));
    } else if (const auto* abort = std::get_if<AbortAction>(&action)) {
      decided_ = abort->known;
      throw Timeout(abort->message);
    }
  }
  if (stalls.empty()) return;
  add(parts_.counters.stalls, static_cast<std::uint64_t>(stalls.size()));
  stall_reporter_.report(stall_of(stalls));
}

void Engine::execute(const ExecuteAction& action, std::span<const OperationPtr> batch) {
  if (control_) control_->flush();  // a peer may still wait for a decision: nothing of ours stays behind a long batch
  schedule_.drain();
  parts_.status.ran(action.batch_id);
  const BatchContext context{sets_.communicator(action.process_set),
                             action.batch_id,
                             parts_.status.knobs_version(),
                             parts_.status.step(),
                             action.rows,
                             action.process_set};
  if (!action.absent.empty()) {
    executor_.execute(JoinedContribution(action.absent, now_ns()).operations(), context);
    return;
  }
  try {
    executor_.execute(batch, context);
  } catch (const DataPathRefused&) {
    return completions_.refused(batch);
  }
  completions_.finish(batch, context);
}

void Engine::apply(const SetAction& action) {
  if (action.added) {
    sets_.add(action.id, action.members.ranks());
  } else {
    schedule_.drain();  // what was declined in the set goes over its links
    sets_.remove(action.id);
    if (parts_.data_paths != nullptr) parts_.data_paths->removed(action.id);
  }
  completions_.decided(action.name, action.id);
}

Deadline Engine::next_turn() const noexcept {
  Deadline next = Deadline::never();  // the shared-memory group tells what happens in a round
  if (!schedule_.waits_in_shm_group()) {
    next = Deadline::at(negotiator_.next_wake_ns());
    if (schedule_.posted()) next = earlier(next, schedule_.deadline());
  }
  return leaving_ ? earlier(next, parts_.mailbox.leave_deadline()) : next;
}

bool Engine::expects_alone(const PersistentRequest& persistent) const noexcept {
  return !ended_ && !leaving_ && !parts_.mailbox.leave_requested() && !parts_.mailbox.has_mail() &&
         parts_.tickets.open() == 0 && negotiator_.expects_alone(persistent.prepared->request);
}

std::int64_t Engine::run_inline(Operation& operation, FinishListener* listener, Deadline deadline, Ticket& ticket) {
  const std::int64_t now = operation.submitted_ns;
  completions_.taken(operation);
  const SharedRequest request(operation.prepared, &operation.prepared->request);
  schedule_.post(negotiator_.run_inline(request, reinterpret_cast<Tag>(&operation), now), now);
  const std::optional<bool> agreed = schedule_.agreed(deadline);
  if (agreed == true && operation.room == 0) return schedule_.end(true);
  ticket = parts_.tickets.hand_over(operation, listener);
  if (!agreed) return 0;
  const std::int64_t end_ns = schedule_.end(*agreed);
  if (!*agreed || !operation.gathered.empty()) return 0;
  parts_.tickets.release(std::exchange(ticket, 0));
  return end_ns;
}

RankState Engine::own_state() const {
  RankState state = parts_.tickets.open_state(now_ns());
  state.waiting = parts_.status.waited_for();
  state.round = schedule_.token();
  return state;
}

void Engine::peer_lost(int rank, const std::string& reason) noexcept {
  const std::exception_ptr error = std::make_exception_ptr(PeerLost(rank, reason));
  parts_.mailbox.lose(error, true);  // liveness tells everybody
  parts_.fabric.abort(
      reason);  // wakes the driving thread wherever it waits; it throws from the link, and stop() follows
  // What waits for the peer in streams does so for ever, and nobody may come by stop() soon.
  if (parts_.data_paths != nullptr) parts_.data_paths->abort(error);
}

void Engine::device_failed(const std::exception_ptr& error) noexcept {
  std::string reason = "a GPU has failed";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& caught) {
    reason = caught.what();
  }
  parts_.mailbox.lose(error, false);
  parts_.fabric.abort(reason);  // as above
}

bool Engine::finished() {
  if (!leaving_) return false;
  if (negotiator_.free_to_go() && schedule_.drained() && (!control_ || control_->flush())) return true;
  return parts_.mailbox.leave_deadline().expired();
}

void Engine::depart() noexcept {
  // Peers that wait in a round for this rank's part must not take it for a clean departure.
  if (!schedule_.posted() && schedule_.drained()) parts_.fabric.leave();
  stop(std::make_exception_ptr(ShutDown("ringtune has been shut down on this rank; call init() again to go on")));
}

void Engine::stop(std::exception_ptr error) noexcept {
  bool known = decided_;  // to the peers
  // A link that broke may belong to a rank that fell with another one: liveness knows who was the first, and why.
  if (const auto loss = parts_.mailbox.loss(is_peer_lost(error) ? kVerdictNs : 0)) {
    error = loss->error;
    known = loss->known;
  }
  std::string reason = "the runtime of a peer has ended";
  std::string told;  // to the others
  bool clean = false;
  try {
    std::rethrow_exception(error);
  } catch (const ShutDown&) {
    clean = true;
  } catch (const PeerLost& caught) {
    // Perhaps only a link broke. The other ranks would not notice that by themselves, and all would wait for this one.
    reason = caught.what();
    told = reason + ", reports " + own_name(parts_.fabric);
  } catch (const Timeout& caught) {
    reason = caught.what();
    told = reason + ", reports " + own_name(parts_.fabric);
  } catch (const std::exception& caught) {
    reason = caught.what();
    told = own_name(parts_.fabric) + " has ended by an error of its own: " + reason;
  }
  if (!clean) {
    log(LogLevel::kDebug, "the runtime stops: ", reason);
    if (!known) parts_.fabric.fail(told);
    parts_.fabric.abort(reason);
    if (parts_.data_paths != nullptr) parts_.data_paths->abort(error);
  }
  parts_.tickets.close(error);
  ended_ = true;
}

}  // namespace ringtune
