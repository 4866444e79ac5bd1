// The schedule of a steady state: when it begins and ends, and that knobs wait for its end.
#include <algorithm>
#include <utility>

#include "control/coordinator.h"

namespace ringtune {
namespace {

// How far ranks of one set of a schedule may be ahead of what those of another set report when it ends.
constexpr std::uint32_t kMostAhead = 1u << 14;
constexpr std::size_t kMostBeside = 4096;  // names that never come again must not pile up

}  // namespace

/// Shows the learner what has just been decided.
void Coordinator::learn() {
  if (!schedules_ || !knobs_.schedule || !left_.empty()) return;
  if (schedule_id_ != 0) return learn_beside();
  if (!joined_.empty()) return learner_.disturbed();
  const bool awaited =
      std::any_of(children_.begin(), children_.end(), [](const auto& child) { return child.second.waiting; });
  std::optional<std::vector<std::vector<std::uint32_t>>> batches;
  for (const Ready& ready : ready_) {
    const ResponseCache::Slot* slot = cache_.find(ready.cache_id);
    const bool live = slot != nullptr && slot->evicted_in == 0;
    batches = learner_.decided(
        {live ? ready.cache_id : TensorRef::kUncached, ready.request, ready.ready_ns, sequence_ + 1, awaited}, knobs_,
        &ready == &ready_.back());
  }
  if (batches) begin_schedule(*batches);
}

/// While a schedule runs, process sets without a part in it are served as always. When they repeat themselves it ends,
/// for one with all of them.
void Coordinator::learn_beside() {
  for (const Ready& ready : ready_) {
    if (ready.cache_id == TensorRef::kUncached) continue;
    if (beside_.size() >= kMostBeside) beside_.clear();
    if (++beside_[ready.cache_id] <= ScheduleLearner::kRounds) continue;
    learner_.outgrown();
    return end_schedule();
  }
}

void Coordinator::begin_schedule(const std::vector<std::vector<std::uint32_t>>& batches) {
  std::vector<ScheduledBatch> scheduled;
  for (const std::vector<std::uint32_t>& batch : batches) {
    ScheduledBatch& one = scheduled.emplace_back();
    for (const std::uint32_t id : batch) {
      const ResponseCache::Slot* slot = cache_.find(id);
      if (slot == nullptr || slot->evicted_in != 0 || !slot->known) return;
      one.process_set = slot->key.process_set;
      one.cache_ids.push_back(id);
    }
  }
  schedule_id_ = ++last_schedule_id_;
  schedule_batches_ = batches.size();
  schedule_sequence_ = sequence_ + 1;
  beside_.clear();
  schedule_first_ = schedule_end_;
  items_.push_back(ScheduleDecision{schedule_id_, schedule_first_, std::move(scheduled)});
  // The ranks keep what they have reported and was not decided: it runs in the schedule, or is reported again after
  // it.
  entries_.clear();
  groups_.clear();
}

/// Ranks have left a schedule after so many batches. The next one is numbered from behind all that any rank ran.
void Coordinator::schedule_left(std::uint32_t schedule_id, std::uint64_t rounds) {
  if (schedule_id == last_schedule_id_) {
    schedule_end_ = schedule_first_ + static_cast<std::uint32_t>(rounds) + kMostAhead;
  }
  if (schedule_id != schedule_id_) return;
  learner_.ended(rounds, schedule_batches_);
  end_schedule();
}

void Coordinator::end_schedule() { items_.push_back(PlanEndDecision{std::exchange(schedule_id_, 0)}); }

std::uint32_t Coordinator::propose(const Knobs& knobs) {
  schedule_ready();                       // what was ready before the change belongs to the old setting
  if (schedule_id_ != 0) end_schedule();  // all leave it before they change
  switch_to(knobs);
  return knobs_version_;
}

void Coordinator::switch_to(const Knobs& knobs) {
  learner_.reset();
  knobs_ = knobs;
  items_.push_back(KnobsDecision{++knobs_version_, knobs_});
  trim_cache();
}

}  // namespace ringtune
