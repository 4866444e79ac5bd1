#include "control/worker.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace ringtune {
namespace {

constexpr const char* kCoordinatorLeft =
    "rank 0 has shut down, so this operation cannot complete. All ranks must run the same collectives before "
    "shutdown().";

constexpr const char* kLeft = "ringtune was shut down on this rank while the operation was pending";

// How long a batch of the plan may stay incomplete although nobody blocks: a caller may wait for a tensor by other
// means than the runtime's.
constexpr std::int64_t kQuietPlanNs = 100'000'000;
constexpr std::int64_t kQuietPlanCycles = 20;
constexpr std::uint32_t kPlanBatch = 1u << 31;  // numbers of batches that no coordinator has given

bool same(const SharedRequest& a, const SharedRequest& b) { return a == b || *a == *b; }

}  // namespace

void Worker::ready(SharedRequest request, Tag tag, std::int64_t now_ns, std::vector<Action>& actions) {
  if (coordinator_left_ || left_) {
    actions.push_back(FailAction{FailureKind::kShutDown, request->name, left_ ? kLeft : kCoordinatorLeft});
    return;
  }
  if (plan_.active()) {
    if (!plan_unfit_ && plan_.take(request, tag, now_ns)) return;
    plan_unfit_ = true;
  }
  enqueue(std::move(request), tag, now_ns);
}

void Worker::enqueue(SharedRequest request, Tag tag, std::int64_t now_ns) {
  if (pending_.empty()) {
    last_heard_ns_ = now_ns;
    if (stall_warning_ns_ > 0) next_stall_ns_ = now_ns + 2 * stall_warning_ns_;
  }
  if (bundle_.empty()) bundle_since_ns_ = now_ns;
  bundle_bytes_ += byte_count(*request);
  bundle_.push_back(request->name);
  std::string name = request->name;
  const bool fresh =
      pending_.emplace(std::move(name), Pending{std::move(request), now_ns, false, order_++, tag}).second;
  RINGTUNE_CHECK(fresh, "tensor '", bundle_.back(), "' is pending already");
}

/// What was announced and not decided belongs to the plan, in the order in which it became ready.
void Worker::enter_plan(const PlanDecision& decision, std::int64_t now_ns) {
  std::vector<std::vector<SharedRequest>> batches;
  for (const std::vector<std::uint32_t>& ids : decision.batches) {
    std::vector<SharedRequest>& batch = batches.emplace_back();
    for (const std::uint32_t id : ids) {
      const auto known = names_by_id_.find(id);
      RINGTUNE_CHECK(known != names_by_id_.end(), "the plan holds the unknown cache number ", id);
      batch.push_back(cache_.at(known->second).request);
    }
  }
  std::vector<Pending> waiting;
  for (auto& [name, pending] : pending_) waiting.push_back(std::move(pending));
  std::sort(waiting.begin(), waiting.end(), [](const Pending& a, const Pending& b) { return a.order < b.order; });
  pending_.clear();
  bundle_.clear();
  bundle_bytes_ = 0;
  next_stall_ns_ = kNever;
  plan_.begin(decision.plan_id, batches, now_ns);
  plan_unfit_ = false;
  told_leaving_ = false;  // an announcement that the coordinator has not heard yet is void
  for (Pending& pending : waiting) {
    if (plan_unfit_ || !plan_.take(pending.request, pending.tag, pending.since_ns)) {
      plan_unfit_ = true;
      enqueue(std::move(pending.request), pending.tag, pending.since_ns);
    }
  }
}

void Worker::leave_plan(std::int64_t now_ns, std::vector<Action>& actions) {
  RINGTUNE_CHECK(!round_posted_);
  if (!plan_.active()) return;
  actions.push_back(DeclineAction{});
  quit_plan(now_ns);
}

/// The next round will not run, or has not run, on any rank: everything is announced again.
void Worker::quit_plan(std::int64_t now_ns) {
  left_plan_ = plan_.id();
  plan_rounds_ = plan_.rounds();
  const std::vector<std::string> unfit = std::exchange(bundle_, {});
  bundle_bytes_ = 0;
  for (PlanFollower::Leftover& left : plan_.end()) enqueue(std::move(left.request), left.tag, now_ns);
  for (const std::string& name : unfit) {
    bundle_.push_back(name);
    bundle_bytes_ += byte_count(*pending_.at(name).request);
  }
  plan_unfit_ = false;
}

void Worker::round_done(bool agreed, std::int64_t now_ns) {
  RINGTUNE_CHECK(round_posted_);
  round_posted_ = false;
  if (agreed) {
    plan_.ran(now_ns);
  } else {
    quit_plan(now_ns);
  }
}

/// When an incomplete batch ends the plan.
std::int64_t Worker::plan_limit_ns() const noexcept {
  if (plan_.pending() == 0) return kNever;
  if (waiting_since_ns_ != kNever) return std::max(waiting_since_ns_, plan_.progress_ns()) + knobs_.cycle_time_ns;
  return plan_.progress_ns() + std::max(kQuietPlanNs, kQuietPlanCycles * knobs_.cycle_time_ns);
}

void Worker::follow_plan(std::int64_t now_ns, std::vector<Action>& actions) {
  if (!plan_.active() || round_posted_) return;
  if (waiting_ && waiting_since_ns_ == kNever) waiting_since_ns_ = now_ns;
  if (leaving_ || plan_unfit_) {
    leave_plan(now_ns, actions);
  } else if (plan_.complete()) {
    round_posted_ = true;
    actions.push_back(RoundAction{kPlanBatch | next_round_id_++, plan_.token()});
  } else if (now_ns >= plan_limit_ns()) {
    leave_plan(now_ns, actions);
  }
}

void Worker::set_waiting(bool waiting) noexcept {
  if (!waiting) {
    told_waiting_ = false;
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

std::optional<WorkerNews> Worker::take_announcement(std::int64_t now_ns) {
  if (plan_.active()) return std::nullopt;
  if (coordinator_left_ && !(leaving_ && !told_leaving_)) return std::nullopt;
  const bool tell_waiting = waiting_ && !told_waiting_ && !pending_.empty();
  const bool tell_leaving = leaving_ && !told_leaving_;
  if (!bundle_due(now_ns) && !tell_waiting && !tell_leaving && left_plan_ == 0) return std::nullopt;
  WorkerNews message;
  message.seen = seen_;
  message.waiting = waiting_;
  message.leaving = leaving_;
  for (const std::string& name : bundle_) {
    Pending& pending = pending_.at(name);
    pending.announced = true;
    const auto cached = cache_.find(name);
    if (cached != cache_.end() && same(cached->second.request, pending.request)) {
      message.cached.push_back(cached->second.id);
    } else {
      message.requests.push_back(*pending.request);
    }
  }
  bundle_.clear();
  bundle_bytes_ = 0;
  message.steps = std::exchange(steps_, {});
  message.left_plan = std::exchange(left_plan_, 0);
  message.plan_rounds = plan_rounds_;
  told_waiting_ = waiting_;
  told_leaving_ = leaving_;
  return message;
}

void Worker::decided(const Decisions& decisions, std::int64_t now_ns, std::vector<Action>& actions) {
  RINGTUNE_CHECK_EQ(decisions.sequence, seen_ + 1, "decisions must arrive in order");
  RINGTUNE_CHECK(!round_posted_, "a decision came while a round of the plan was posted");
  seen_ = decisions.sequence;
  last_heard_ns_ = now_ns;
  for (const Decision& decision : decisions.items) {
    if (const auto* batch = std::get_if<BatchDecision>(&decision)) {
      apply(*batch, actions);
    } else if (const auto* failure = std::get_if<FailureDecision>(&decision)) {
      apply(*failure, actions);
    } else if (const auto* change = std::get_if<KnobsDecision>(&decision)) {
      knobs_ = change->knobs;
      actions.push_back(ApplyKnobsAction{change->epoch, change->knobs});
    } else if (const auto* evict = std::get_if<EvictDecision>(&decision)) {
      for (const std::uint32_t id : evict->cache_ids) forget(id);
    } else if (const auto* left = std::get_if<LeftDecision>(&decision)) {
      apply(*left, actions);
    } else if (const auto* abort = std::get_if<AbortDecision>(&decision)) {
      actions.push_back(AbortAction{abort->message});
    } else if (const auto* plan = std::get_if<PlanDecision>(&decision)) {
      enter_plan(*plan, now_ns);
    } else if (const auto* end = std::get_if<PlanEndDecision>(&decision)) {
      if (plan_.id() == end->plan_id) leave_plan(now_ns, actions);
    }
  }
}

void Worker::apply(const BatchDecision& batch, std::vector<Action>& actions) {
  ExecuteAction action;
  action.batch_id = batch.batch_id;
  action.rows = batch.rows;
  for (const TensorRef& tensor : batch.tensors) {
    std::string name = tensor.name;
    if (name.empty()) {
      const auto known = names_by_id_.find(tensor.cache_id);
      RINGTUNE_CHECK(known != names_by_id_.end(), "no tensor has cache number ", tensor.cache_id);
      name = known->second;
    }
    RINGTUNE_CHECK(pending_.count(name) == 1, "tensor '", name, "' was decided but is not pending");
    if (tensor.cache_id != TensorRef::kUncached && !tensor.name.empty()) remember(tensor.cache_id, name);
    pending_.erase(name);
    action.names.push_back(std::move(name));
  }
  if (pending_.empty()) next_stall_ns_ = kNever;
  actions.push_back(std::move(action));
}

void Worker::apply(const FailureDecision& failure, std::vector<Action>& actions) {
  const auto pending = pending_.find(failure.name);
  if (pending == pending_.end()) return;  // this rank had not come to it yet; it will be told again when it does
  if (!pending->second.announced) {
    bundle_bytes_ -= std::min(bundle_bytes_, byte_count(*pending->second.request));
    bundle_.erase(std::find(bundle_.begin(), bundle_.end(), failure.name));
  }
  pending_.erase(pending);
  if (pending_.empty()) next_stall_ns_ = kNever;
  actions.push_back(FailAction{failure.kind, failure.name, failure.message});
}

void Worker::apply(const LeftDecision& left, std::vector<Action>& actions) {
  if (left.rank == rank_) {
    left_ = true;
    fail_all(kLeft, actions);
  } else if (left.rank == 0) {
    coordinator_left_ = true;
    fail_all(kCoordinatorLeft, actions);
  }
}

void Worker::fail_all(const std::string& message, std::vector<Action>& actions) {
  std::vector<std::string> names;
  for (const auto& [name, pending] : pending_) names.push_back(name);
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) actions.push_back(FailAction{FailureKind::kShutDown, name, message});
  pending_.clear();
  bundle_.clear();
  bundle_bytes_ = 0;
  next_stall_ns_ = kNever;
}

void Worker::remember(std::uint32_t id, const std::string& name) {
  const auto old = cache_.find(name);
  if (old != cache_.end()) names_by_id_.erase(old->second.id);
  cache_.insert_or_assign(name, Cached{id, pending_.at(name).request});
  names_by_id_.insert_or_assign(id, name);
}

void Worker::forget(std::uint32_t id) {
  const auto known = names_by_id_.find(id);
  if (known == names_by_id_.end()) return;
  cache_.erase(known->second);
  names_by_id_.erase(known);
}

void Worker::tick(std::int64_t now_ns, std::vector<Action>& actions) {
  if (now_ns < next_stall_ns_) return;
  next_stall_ns_ = std::max(last_heard_ns_, now_ns) + 2 * stall_warning_ns_;
  if (now_ns - last_heard_ns_ < 2 * stall_warning_ns_) return;  // the coordinator is alive and warns by itself
  const Pending* oldest = nullptr;
  for (const auto& [name, pending] : pending_) {
    if (oldest == nullptr || pending.since_ns < oldest->since_ns) oldest = &pending;
  }
  if (oldest == nullptr || now_ns - oldest->since_ns < 2 * stall_warning_ns_) return;
  actions.push_back(StallAction{oldest->request->name, {0}, now_ns - oldest->since_ns});
}

std::int64_t Worker::next_wake_ns() const noexcept {
  if (plan_.active()) {
    if (round_posted_) return kNever;  // the runtime waits for that round
    if (leaving_ || plan_unfit_ || plan_.complete()) return 0;
    return plan_limit_ns();
  }
  if (left_plan_ != 0) return 0;
  if ((leaving_ && !told_leaving_) || (waiting_ && !told_waiting_ && !pending_.empty())) return 0;
  if (bundle_.empty()) return next_stall_ns_;
  if (waiting_ || bundle_bytes_ >= knobs_.fusion_bytes) return 0;
  return std::min(next_stall_ns_, bundle_since_ns_ + knobs_.cycle_time_ns);
}

void Worker::validate_state() const {
  RINGTUNE_CHECK_EQ(cache_.size(), names_by_id_.size());
  for (const auto& [id, name] : names_by_id_) RINGTUNE_CHECK_EQ(cache_.at(name).id, id);
  for (const std::string& name : bundle_) RINGTUNE_CHECK(!pending_.at(name).announced, "'", name, "' is in the bundle");
  plan_.validate_state();
  RINGTUNE_CHECK(!round_posted_ || plan_.active());
  RINGTUNE_CHECK(!((coordinator_left_ || left_) && !pending_.empty()));
}

}  // namespace ringtune
