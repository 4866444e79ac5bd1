// How a rank enters and leaves the schedule of a steady state, and when it does.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "control/worker.h"

namespace ringtune {
namespace {

// How long a batch of the schedule may stay incomplete although nobody blocks: a caller may wait for a tensor by other
// means than the runtime's.
constexpr std::int64_t kQuietScheduleNs = 100'000'000;
constexpr std::int64_t kQuietScheduleCycles = 20;
// How long a round may keep a rank from all else that is ready there: the rank that it waits for may wait for that, by
// other means than the runtime's. Short against a job that hangs, long against the lateness of a rank: a schedule that
// ends costs some negotiated steps.
constexpr std::int64_t kHoldOffNs = 1'000'000'000;

}  // namespace

/// What was reported and not decided belongs to the schedule, in the order in which it became ready. A rank without a
/// part in the schedule reports it again: the coordinator has forgotten it.
void Worker::enter_schedule(const ScheduleDecision& decision, std::int64_t now_ns, std::vector<Action>& actions) {
  std::vector<std::vector<SharedRequest>> batches;
  std::vector<std::vector<std::int64_t>> rows;
  bool part = false;
  for (const ScheduledBatch& scheduled : decision.batches) {
    std::vector<SharedRequest>& batch = batches.emplace_back();
    std::vector<std::int64_t>& batch_rows = rows.emplace_back();
    const RankSet* members = sets_.members(scheduled.process_set);
    RINGTUNE_CHECK(members != nullptr, "a schedule is for the unknown process set ", scheduled.process_set);
    if (!members->contains(rank_)) continue;
    part = true;
    for (const std::uint32_t id : scheduled.cache_ids) {
      const auto known = keys_by_id_.find(id);
      RINGTUNE_CHECK(known != keys_by_id_.end(), "the schedule holds the unknown cache number ", id);
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
  if (part) schedule_.begin(decision.schedule_id, batches, now_ns, std::move(rows));
  first_batch_ = decision.first_batch;
  schedule_unfit_ = !part;
  sent_leaving_ = false;  // news that the coordinator has not got yet are void
  for (Pending& pending : waiting) {
    if (schedule_unfit_ || !schedule_.take(pending.request, pending.tag, pending.since_ns)) {
      schedule_unfit_ = true;
      enqueue(std::move(pending.request), pending.tag, pending.since_ns);
    }
  }
  if (!part) {
    schedule_unfit_ = false;
    return;
  }
  std::erase_if(batches, [](const auto& batch) { return batch.empty(); });
  actions.push_back(BeginScheduleAction{decision.schedule_id, std::move(batches)});
}

void Worker::leave_schedule(std::int64_t now_ns, std::vector<Action>& actions) {
  RINGTUNE_CHECK(!round_posted_);
  if (!schedule_.active()) return;
  for (ScheduleFollower::Round& round : schedule_.next_rounds()) decline(std::move(round), actions);
  quit_schedule(now_ns);
}

void Worker::decline(ScheduleFollower::Round round, std::vector<Action>& actions) {
  actions.push_back(DeclineAction{round.token, std::move(round.batch)});
}

/// The next round will not run, or has not run, on any rank: everything is reported again.
void Worker::quit_schedule(std::int64_t now_ns) {
  left_schedule_ = schedule_.id();
  schedule_rounds_ = schedule_.rounds();
  const std::vector<TensorKey> unfit = std::exchange(bundle_, {});
  bundle_bytes_ = 0;
  for (ScheduleFollower::Leftover& left : schedule_.end()) enqueue(std::move(left.request), left.tag, now_ns);
  for (const TensorKey& key : unfit) {
    bundle_.push_back(key);
    bundle_bytes_ += wire_byte_count(*pending_.at(key).request);
  }
  schedule_unfit_ = false;
}

void Worker::round_done(bool agreed, std::int64_t now_ns, std::vector<Action>& actions) {
  RINGTUNE_CHECK(round_posted_);
  round_posted_ = false;
  if (agreed) {
    schedule_.ran(now_ns);
  } else {
    for (ScheduleFollower::Round& round : schedule_.next_rounds()) {
      if (round.token != schedule_.token()) decline(std::move(round), actions);
    }
    quit_schedule(now_ns);
  }
  for (const Decisions& decisions : std::exchange(deferred_, {})) decided(decisions, now_ns, actions);
}

/// When an incomplete batch ends the schedule.
std::int64_t Worker::schedule_limit_ns() const noexcept {
  if (schedule_.pending() == 0) return kNever;
  if (waiting_since_ns_ != kNever) return std::max(waiting_since_ns_, schedule_.progress_ns()) + knobs_.cycle_time_ns;
  return schedule_.progress_ns() + std::max(kQuietScheduleNs, kQuietScheduleCycles * knobs_.cycle_time_ns);
}

/// When a rank that waits in a round asks for the end of the schedule.
std::int64_t Worker::hold_off_end_ns() const noexcept {
  const bool more = schedule_unfit_ || schedule_.pending() > schedule_.batch().size();
  const bool may_ask = round_posted_ && receives_in_rounds() && wished_ended_ != schedule_.id();
  return may_ask && more ? round_since_ns_ + kHoldOffNs : kNever;
}

/// To the coordinator it is as if this rank had left: all others do, and the round ends.
WorkerNews Worker::wish_for_the_end() {
  wished_ended_ = schedule_.id();
  WorkerNews message = acknowledgement();
  message.left_schedule = schedule_.id();
  message.schedule_rounds = schedule_.rounds();
  return message;
}

}  // namespace ringtune
