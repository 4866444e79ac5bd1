// How a rank enters, follows and leaves the plan of a steady state.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "control/worker.h"

namespace ringtune {
namespace {

// How long a batch of the plan may stay incomplete although nobody blocks: a caller may wait for a tensor by other
// means than the runtime's.
constexpr std::int64_t kQuietPlanNs = 100'000'000;
constexpr std::int64_t kQuietPlanCycles = 20;
// How long a round may keep a rank from all else that is ready there: the rank that it waits for may wait for that, by
// other means than the runtime's. Short against a job that hangs, long against the lateness of a rank: a plan that ends
// costs some negotiated steps.
constexpr std::int64_t kPatienceNs = 1'000'000'000;
constexpr std::uint32_t kPlanBatch = 1u << 31;  // numbers of batches that no coordinator has given

}  // namespace

/// What was announced and not decided belongs to the plan, in the order in which it became ready. A rank without a part
/// in the plan announces it again: the coordinator has forgotten it.
void Worker::enter_plan(const PlanDecision& decision, std::int64_t now_ns, std::vector<Action>& actions) {
  std::vector<std::vector<SharedRequest>> batches;
  std::vector<std::vector<std::int64_t>> rows;
  bool part = false;
  for (const PlannedBatch& planned : decision.batches) {
    std::vector<SharedRequest>& batch = batches.emplace_back();
    std::vector<std::int64_t>& batch_rows = rows.emplace_back();
    const RankSet* members = sets_.members(planned.process_set);
    RINGTUNE_CHECK(members != nullptr, "a plan is for the unknown process set ", planned.process_set);
    if (!members->contains(rank_)) continue;
    part = true;
    for (const std::uint32_t id : planned.cache_ids) {
      const auto known = keys_by_id_.find(id);
      RINGTUNE_CHECK(known != keys_by_id_.end(), "the plan holds the unknown cache number ", id);
      const Cached& cached = cache_.at(known->second);
      batch.push_back(cached.request);
      if (cached.request->kind == CollectiveKind::kAllgather) batch_rows = cached.rows;
    }
  }
  std::vector<Pending> waiting;
  for (auto& [key, pending] : pending_) waiting.push_back(std::move(pending));
  std::sort(waiting.begin(), waiting.end(), [](const Pending& a, const Pending& b) { return a.order < b.order; });
  pending_.clear();
  bundle_.clear();
  bundle_bytes_ = 0;
  next_stall_ns_ = kNever;
  if (part) plan_.begin(decision.plan_id, batches, now_ns, std::move(rows));
  plan_unfit_ = !part;
  told_leaving_ = false;  // an announcement that the coordinator has not heard yet is void
  for (Pending& pending : waiting) {
    if (plan_unfit_ || !plan_.take(pending.request, pending.tag, pending.since_ns)) {
      plan_unfit_ = true;
      enqueue(std::move(pending.request), pending.tag, pending.since_ns);
    }
  }
  if (!part) {
    plan_unfit_ = false;
    return;
  }
  std::erase_if(batches, [](const auto& batch) { return batch.empty(); });
  actions.push_back(BeginPlanAction{decision.plan_id, std::move(batches)});
}

void Worker::leave_plan(std::int64_t now_ns, std::vector<Action>& actions) {
  RINGTUNE_CHECK(!round_posted_);
  if (!plan_.active()) return;
  for (PlanFollower::Round& round : plan_.next_rounds()) decline(std::move(round), actions);
  quit_plan(now_ns);
}

void Worker::decline(PlanFollower::Round round, std::vector<Action>& actions) {
  actions.push_back(DeclineAction{round.token, std::move(round.batch)});
}

/// The next round will not run, or has not run, on any rank: everything is announced again.
void Worker::quit_plan(std::int64_t now_ns) {
  left_plan_ = plan_.id();
  plan_rounds_ = plan_.rounds();
  const std::vector<TensorKey> unfit = std::exchange(bundle_, {});
  bundle_bytes_ = 0;
  for (PlanFollower::Leftover& left : plan_.end()) enqueue(std::move(left.request), left.tag, now_ns);
  for (const TensorKey& key : unfit) {
    bundle_.push_back(key);
    bundle_bytes_ += wire_byte_count(*pending_.at(key).request);
  }
  plan_unfit_ = false;
}

void Worker::round_done(bool agreed, std::int64_t now_ns, std::vector<Action>& actions) {
  RINGTUNE_CHECK(round_posted_);
  round_posted_ = false;
  if (agreed) {
    plan_.ran(now_ns);
  } else {
    for (PlanFollower::Round& round : plan_.next_rounds()) {
      if (round.token != plan_.token()) decline(std::move(round), actions);
    }
    quit_plan(now_ns);
  }
  for (const Decisions& decisions : std::exchange(deferred_, {})) decided(decisions, now_ns, actions);
}

/// When an incomplete batch ends the plan.
std::int64_t Worker::plan_limit_ns() const noexcept {
  if (plan_.pending() == 0) return kNever;
  if (waiting_since_ns_ != kNever) return std::max(waiting_since_ns_, plan_.progress_ns()) + knobs_.cycle_time_ns;
  return plan_.progress_ns() + std::max(kQuietPlanNs, kQuietPlanCycles * knobs_.cycle_time_ns);
}

/// When a rank that waits in a round asks for the end of the plan.
std::int64_t Worker::patience_end_ns() const noexcept {
  const bool more = plan_unfit_ || plan_.pending() > plan_.batch().size();
  const bool may_ask = round_posted_ && hears_in_rounds() && wished_ended_ != plan_.id();
  return may_ask && more ? round_since_ns_ + kPatienceNs : kNever;
}

/// To the coordinator it is as if this rank had left: all others do, and the round ends.
WorkerNews Worker::wish_for_the_end() {
  wished_ended_ = plan_.id();
  WorkerNews message = acknowledgement();
  message.left_plan = plan_.id();
  message.plan_rounds = plan_.rounds();
  return message;
}

RoundAction Worker::next_round(std::int64_t now_ns) noexcept {
  round_posted_ = true;
  round_since_ns_ = now_ns;
  return {kPlanBatch | next_round_id_++, plan_.token()};
}

RoundAction Worker::post_alone(const SharedRequest& request, Tag tag, std::int64_t now_ns) {
  RINGTUNE_CHECK(expects_alone(*request) && plan_.take(request, tag, now_ns), "'", request->name, "'");
  return next_round(now_ns);
}

void Worker::follow_plan(std::int64_t now_ns, std::vector<Action>& actions) {
  if (!plan_.active() || round_posted_) return;
  if (waiting_ && waiting_since_ns_ == kNever) waiting_since_ns_ = now_ns;
  if (leaving_ || plan_unfit_) {
    leave_plan(now_ns, actions);
  } else if (plan_.complete()) {
    actions.push_back(next_round(now_ns));
  } else if (now_ns >= plan_limit_ns()) {
    leave_plan(now_ns, actions);
  }
}

}  // namespace ringtune
