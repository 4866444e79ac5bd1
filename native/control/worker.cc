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

bool same(const SharedRequest& a, const SharedRequest& b) { return a == b || *a == *b; }

}  // namespace

void Worker::ready(SharedRequest request, std::int64_t now_ns, std::vector<Action>& actions) {
  if (coordinator_left_ || left_) {
    actions.push_back(FailAction{FailureKind::kShutDown, request->name, left_ ? kLeft : kCoordinatorLeft});
    return;
  }
  if (pending_.empty()) {
    last_heard_ns_ = now_ns;
    if (stall_warning_ns_ > 0) next_stall_ns_ = now_ns + 2 * stall_warning_ns_;
  }
  if (bundle_.empty()) bundle_since_ns_ = now_ns;
  bundle_bytes_ += byte_count(*request);
  bundle_.push_back(request->name);
  std::string name = request->name;
  const bool fresh = pending_.emplace(std::move(name), Pending{std::move(request), now_ns}).second;
  RINGTUNE_CHECK(fresh, "tensor '", bundle_.back(), "' is pending already");
}

void Worker::set_waiting(bool waiting) noexcept {
  if (!waiting) told_waiting_ = false;
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
  if (coordinator_left_ && !(leaving_ && !told_leaving_)) return std::nullopt;
  const bool tell_waiting = waiting_ && !told_waiting_ && !pending_.empty();
  const bool tell_leaving = leaving_ && !told_leaving_;
  if (!bundle_due(now_ns) && !tell_waiting && !tell_leaving) return std::nullopt;
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
  told_waiting_ = waiting_;
  told_leaving_ = leaving_;
  return message;
}

void Worker::decided(const Decisions& decisions, std::int64_t now_ns, std::vector<Action>& actions) {
  RINGTUNE_CHECK_EQ(decisions.sequence, seen_ + 1, "decisions must arrive in order");
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
  if ((leaving_ && !told_leaving_) || (waiting_ && !told_waiting_ && !pending_.empty())) return 0;
  if (bundle_.empty()) return next_stall_ns_;
  if (waiting_ || bundle_bytes_ >= knobs_.fusion_bytes) return 0;
  return std::min(next_stall_ns_, bundle_since_ns_ + knobs_.cycle_time_ns);
}

void Worker::validate_state() const {
  RINGTUNE_CHECK_EQ(cache_.size(), names_by_id_.size());
  for (const auto& [id, name] : names_by_id_) RINGTUNE_CHECK_EQ(cache_.at(name).id, id);
  for (const std::string& name : bundle_) RINGTUNE_CHECK(!pending_.at(name).announced, "'", name, "' is in the bundle");
  RINGTUNE_CHECK(!((coordinator_left_ || left_) && !pending_.empty()));
}

}  // namespace ringtune
