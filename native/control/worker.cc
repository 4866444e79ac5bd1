#include "control/worker.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "control/stall.h"

namespace ringtune {
namespace {

// How much later than at its timeout a tensor ends the job here: rank 0 does so at the timeout, and names the ranks
// that are missing.
constexpr std::int64_t kSilenceNs = 400'000'000;

bool same(const SharedRequest& a, const SharedRequest& b) { return a == b || *a == *b; }
constexpr std::uint32_t kScheduleBatch = 1u << 31;  // numbers of batches that no coordinator has given

}  // namespace

void Worker::ready(SharedRequest request, Tag tag, std::int64_t now_ns, std::vector<Action>& actions) {
  if (coordinator_left_ || left_) {
    actions.push_back(FailAction{FailureKind::kShutDown, request->name, end_message(*request), request->process_set});
    return;
  }
  if (schedule_.active()) {
    if (!schedule_unfit_ && schedule_.take(request, tag, now_ns)) return;
    schedule_unfit_ = true;
  }
  enqueue(std::move(request), tag, now_ns);
}

void Worker::enqueue(SharedRequest request, Tag tag, std::int64_t now_ns) {
  if (pending_.empty()) {
    last_message_ns_ = now_ns;
    if (stall_warning_ns_ > 0) next_stall_ns_ = now_ns + 2 * stall_warning_ns_;
  }
  if (request->timeout_ns > 0 && rank_ != 0) {
    next_overdue_ns_ = std::min(next_overdue_ns_, now_ns + request->timeout_ns + kSilenceNs);
  }
  if (request->kind == CollectiveKind::kJoin) join_name_ = request->name;
  if (bundle_.empty()) bundle_since_ns_ = now_ns;
  bundle_bytes_ += wire_byte_count(*request);
  bundle_.push_back(key_of(*request));
  const bool fresh = pending_.emplace(bundle_.back(), Pending{std::move(request), now_ns, false, order_++, tag}).second;
  RINGTUNE_CHECK(fresh, "tensor '", bundle_.back().name, "' is pending already");
}

void Worker::set_waiting(bool waiting) noexcept {
  if (!waiting) {
    sent_waiting_ = false;
    waiting_since_ns_ = kNever;
  }
  waiting_ = waiting;
}

void Worker::report_step(const StepReport& report) {
  constexpr std::size_t kKept = 64;  // a rank that never communicates must not pile them up
  if (steps_.size() == kKept) steps_.erase(steps_.begin());
  steps_.push_back(report);
}

bool Worker::bundle_due(std::int64_t now_ns) const noexcept {
  if (bundle_.empty()) return false;
  return waiting_ || bundle_bytes_ >= knobs_.fusion_bytes || now_ns >= bundle_since_ns_ + knobs_.cycle_time_ns;
}

std::optional<WorkerNews> Worker::take_news(std::int64_t now_ns) {
  if (schedule_.active()) {
    if (now_ns >= hold_off_end_ns()) return wish_for_the_end();
    return !round_posted_ && owes_acknowledgement() ? std::optional(acknowledgement()) : std::nullopt;
  }
  if (coordinator_left_ && !(leaving_ && !sent_leaving_)) return std::nullopt;
  const bool sends_waiting = waiting_ && !sent_waiting_ && !pending_.empty();
  const bool sends_leaving = leaving_ && !sent_leaving_;
  if (!bundle_due(now_ns) && !sends_waiting && !sends_leaving && left_schedule_ == 0) {
    return owes_acknowledgement() ? std::optional(acknowledgement()) : std::nullopt;
  }
  WorkerNews message = acknowledgement();
  if (leaving_) {
    message.leaving = RankSet::one(rank_);
    message.departures = {departure_};
  }
  for (const TensorKey& key : bundle_) {
    Pending& pending = pending_.at(key);
    pending.announced = true;
    const auto cached = cache_.find(key);
    if (cached != cache_.end() && same(cached->second.request, pending.request)) {
      message.cached.push_back(cached->second.id);
    } else {
      message.requests.push_back({pending.request, RankSet::one(rank_)});
    }
  }
  bundle_.clear();
  bundle_bytes_ = 0;
  for (const StepReport& report : std::exchange(steps_, {})) {
    message.steps.push_back({report.step, report.duration_ns, 1});
  }
  message.left_schedule = std::exchange(left_schedule_, 0);
  message.schedule_rounds = schedule_rounds_;
  sent_leaving_ = leaving_;
  return message;
}

/// News that are none but for what this rank has seen.
WorkerNews Worker::acknowledgement() {
  WorkerNews message;
  message.seen = message.acknowledged = sent_seen_ = seen_;
  message.waiting = sent_waiting_ = waiting_;
  return message;
}

void Worker::decided(const Decisions& decisions, std::int64_t now_ns, std::vector<Action>& actions) {
  if (round_posted_) {
    deferred_.push_back(decisions);
    return;
  }
  RINGTUNE_CHECK_EQ(decisions.sequence, seen_ + 1, "decisions must arrive in order");
  seen_ = decisions.sequence;
  last_message_ns_ = now_ns;
  for (const Decision& decision : decisions.items) {
    if (const auto* batch = std::get_if<BatchDecision>(&decision)) {
      apply(*batch, actions);
    } else if (const auto* failure = std::get_if<FailureDecision>(&decision)) {
      apply(*failure, actions);
    } else if (const auto* change = std::get_if<KnobsDecision>(&decision)) {
      knobs_ = change->knobs;
      actions.push_back(ApplyKnobsAction{change->knobs_version, change->knobs});
    } else if (const auto* evict = std::get_if<EvictDecision>(&decision)) {
      for (const std::uint32_t id : evict->cache_ids) forget(id);
    } else if (const auto* left = std::get_if<LeftDecision>(&decision)) {
      apply(*left, actions);
    } else if (const auto* abort = std::get_if<AbortDecision>(&decision)) {
      actions.push_back(AbortAction{abort->message});
    } else if (const auto* schedule = std::get_if<ScheduleDecision>(&decision)) {
      enter_schedule(*schedule, now_ns, actions);
    } else if (const auto* end = std::get_if<PlanEndDecision>(&decision)) {
      if (schedule_.id() == end->schedule_id) leave_schedule(now_ns, actions);
    } else if (const auto* set = std::get_if<SetDecision>(&decision)) {
      apply(*set, actions);
    } else if (const auto* join = std::get_if<JoinDecision>(&decision)) {
      apply(*join, actions);
    }
  }
}

void Worker::apply(const BatchDecision& batch, std::vector<Action>& actions) {
  const RankSet* members = sets_.members(batch.process_set);
  RINGTUNE_CHECK(members != nullptr, "a batch is for the unknown process set ", batch.process_set);
  if (!members->contains(rank_)) return;
  ExecuteAction action;
  action.batch_id = batch.batch_id;
  action.process_set = batch.process_set;
  const bool absent = batch.absent.contains(rank_);
  RINGTUNE_CHECK(!absent || batch.templates.size() == batch.tensors.size());
  for (std::size_t i = 0; i < batch.tensors.size(); ++i) {
    if (absent) {
      action.absent.push_back(batch.templates[i].request);
      action.names.push_back(action.absent.back()->name);
      continue;
    }
    const TensorRef& tensor = batch.tensors[i];
    const SharedRequest request = take(batch, i);
    if (batch.tensors.size() == 1) {
      const auto cached = tensor.name.empty() ? cache_.find(key_of(*request)) : cache_.end();
      action.rows = cached == cache_.end() ? batch.rows : cached->second.rows;
    }
    action.names.push_back(request->name);
  }
  actions.push_back(std::move(action));
}

/// The pending request that a batch names; it is not pending any more.
SharedRequest Worker::take(const BatchDecision& batch, std::size_t index) {
  const TensorRef& tensor = batch.tensors[index];
  TensorKey key{batch.process_set, tensor.name};
  if (tensor.name.empty()) {
    const auto known = keys_by_id_.find(tensor.cache_id);
    RINGTUNE_CHECK(known != keys_by_id_.end(), "no tensor has cache number ", tensor.cache_id);
    key = known->second;
  }
  const auto pending = pending_.find(key);
  RINGTUNE_CHECK(pending != pending_.end(), "tensor '", key.name, "' was decided but is not pending");
  SharedRequest request = pending->second.request;
  if (tensor.cache_id != TensorRef::kUncached && !tensor.name.empty()) cache_call(tensor.cache_id, request, batch.rows);
  finish(key);
  return request;
}

void Worker::finish(const TensorKey& key) {
  pending_.erase(key);
  if (pending_.empty()) next_stall_ns_ = kNever;
}

void Worker::apply(const FailureDecision& failure, std::vector<Action>& actions) {
  const TensorKey key{failure.process_set, failure.name};
  const auto pending = pending_.find(key);
  if (pending == pending_.end()) return;  // this rank has not announced it yet, and gets the failure again when it does
  if (!pending->second.announced) {
    bundle_bytes_ -= std::min(bundle_bytes_, wire_byte_count(*pending->second.request));
    bundle_.erase(std::find(bundle_.begin(), bundle_.end(), key));
  }
  finish(key);
  actions.push_back(FailAction{failure.kind, failure.name, failure.message, failure.process_set});
}

/// What is pending in a removed set fails by itself: the coordinator refuses it when it arrives.
void Worker::apply(const SetDecision& change, std::vector<Action>& actions) {
  if (change.added) {
    sets_.put(change.id, change.members);
  } else {
    sets_.remove(change.id);
  }
  finish({ProcessSets::kGlobal, change.name});
  actions.push_back(SetAction{change.name, change.added, change.id, change.members});
}

void Worker::apply(const JoinDecision& join, std::vector<Action>& actions) {
  const TensorKey key{ProcessSets::kGlobal, join_name_};
  RINGTUNE_CHECK(pending_.count(key) == 1, "all ranks have joined, but this one has not");
  finish(key);
  actions.push_back(JoinAction{join_name_, join.last_rank});
}

void Worker::apply(const LeftDecision& left, std::vector<Action>& actions) {
  departures_.note(left.departure);
  if (left.departure.rank == rank_) {
    left_ = true;
    fail_all(actions);
  } else if (left.departure.rank == 0) {
    coordinator_left_ = true;
    fail_all(actions);
  }
}

/// Why nothing can complete any more on this rank, which has left or whose coordinator has.
std::string Worker::end_message(const Request& request) const {
  if (left_) return "ringtune was shut down on this rank while " + title_of(request) + " was pending";
  return departures_.message(request, RankSet::one(0));
}

void Worker::fail_all(std::vector<Action>& actions) {
  std::vector<TensorKey> keys;
  for (const auto& [key, pending] : pending_) keys.push_back(key);
  std::sort(keys.begin(), keys.end());
  for (const TensorKey& key : keys) {
    actions.push_back(
        FailAction{FailureKind::kShutDown, key.name, end_message(*pending_.at(key).request), key.process_set});
  }
  pending_.clear();
  bundle_.clear();
  bundle_bytes_ = 0;
  next_stall_ns_ = kNever;
}

void Worker::cache_call(std::uint32_t id, const SharedRequest& request, const std::vector<std::int64_t>& rows) {
  TensorKey key = key_of(*request);
  const auto old = cache_.find(key);
  if (old != cache_.end()) keys_by_id_.erase(old->second.id);
  cache_.insert_or_assign(key, Cached{id, request, rows});
  keys_by_id_.insert_or_assign(id, std::move(key));
}

void Worker::forget(std::uint32_t id) {
  const auto known = keys_by_id_.find(id);
  if (known == keys_by_id_.end()) return;
  cache_.erase(known->second);
  keys_by_id_.erase(known);
}

/// Ends the job when a tensor has outlived its timeout and rank 0, which would have said so, is silent as long.
void Worker::find_overdue(std::int64_t now_ns, std::vector<Action>& actions) {
  next_overdue_ns_ = kNever;
  for (const auto& [key, pending] : pending_) {
    const Request& request = *pending.request;
    if (request.timeout_ns == 0) continue;
    const std::int64_t since_ns = std::max(pending.since_ns, last_message_ns_);
    const std::int64_t due_ns = since_ns + request.timeout_ns + kSilenceNs;
    if (now_ns >= due_ns) {
      actions.push_back(AbortAction{overdue_message(request, now_ns - since_ns, std::vector{0}, hosts_), false});
      return;
    }
    next_overdue_ns_ = std::min(next_overdue_ns_, due_ns);
  }
}

void Worker::tick(std::int64_t now_ns, std::vector<Action>& actions) {
  if (now_ns >= next_overdue_ns_) find_overdue(now_ns, actions);
  if (now_ns < next_stall_ns_) return;
  next_stall_ns_ = std::max(last_message_ns_, now_ns) + 2 * stall_warning_ns_;
  if (now_ns - last_message_ns_ < 2 * stall_warning_ns_) return;  // the coordinator is alive and warns by itself
  const Pending* oldest = nullptr;
  for (const auto& [key, pending] : pending_) {
    if (pending.request->kind == CollectiveKind::kJoin) continue;  // waits as long as others have data
    if (oldest == nullptr || pending.since_ns < oldest->since_ns) oldest = &pending;
  }
  if (oldest == nullptr || now_ns - oldest->since_ns < 2 * stall_warning_ns_) return;
  const Request& request = *oldest->request;
  actions.push_back(StallAction{request.name, {0}, now_ns - oldest->since_ns, request.process_set, title_of(request)});
}

RoundAction Worker::next_round(std::int64_t now_ns) noexcept {
  round_posted_ = true;
  round_since_ns_ = now_ns;
  return {kScheduleBatch | (first_batch_ + static_cast<std::uint32_t>(schedule_.rounds())), schedule_.token()};
}

RoundAction Worker::run_inline(const SharedRequest& request, Tag tag, std::int64_t now_ns) {
  RINGTUNE_CHECK(expects_alone(*request) && schedule_.take(request, tag, now_ns), "'", request->name, "'");
  return next_round(now_ns);
}

void Worker::follow_schedule(std::int64_t now_ns, std::vector<Action>& actions) {
  if (!schedule_.active() || round_posted_) return;
  if (waiting_ && waiting_since_ns_ == kNever) waiting_since_ns_ = now_ns;
  if (leaving_ || schedule_unfit_) {
    leave_schedule(now_ns, actions);
  } else if (schedule_.complete()) {
    actions.push_back(next_round(now_ns));
  } else if (now_ns >= schedule_limit_ns()) {
    leave_schedule(now_ns, actions);
  }
}

std::int64_t Worker::next_wake_ns() const noexcept {
  if (schedule_.active()) {
    if (round_posted_) return hold_off_end_ns();  // the runtime waits for that round
    if (leaving_ || schedule_unfit_ || schedule_.complete()) return 0;
    return schedule_limit_ns();
  }
  if (left_schedule_ != 0 || (owes_acknowledgement() && !coordinator_left_)) return 0;
  if ((leaving_ && !sent_leaving_) || (waiting_ && !sent_waiting_ && !pending_.empty())) return 0;
  const std::int64_t look_ns = std::min(next_stall_ns_, next_overdue_ns_);
  if (bundle_.empty()) return look_ns;
  if (waiting_ || bundle_bytes_ >= knobs_.fusion_bytes) return 0;
  return std::min(look_ns, bundle_since_ns_ + knobs_.cycle_time_ns);
}

void Worker::validate_state() const {
  RINGTUNE_CHECK_EQ(cache_.size(), keys_by_id_.size());
  for (const auto& [id, key] : keys_by_id_) RINGTUNE_CHECK_EQ(cache_.at(key).id, id);
  for (const TensorKey& key : bundle_) RINGTUNE_CHECK(!pending_.at(key).announced, "'", key.name, "' is in the bundle");
  schedule_.validate_state();
  RINGTUNE_CHECK(!round_posted_ || schedule_.active());
  RINGTUNE_CHECK(!((coordinator_left_ || left_) && !pending_.empty()));
}

}  // namespace ringtune
