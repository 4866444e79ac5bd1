// The plan of a steady state: when it begins and ends, and that knobs wait for its end.
#include <algorithm>
#include <utility>

#include "control/coordinator.h"

namespace ringtune {
namespace {

constexpr std::size_t kMostBeside = 4096;  // names that never come again must not pile up

}  // namespace

/// Shows the learner what has just been decided.
void Coordinator::learn() {
  if (!plans_ || !knobs_.plan || !left_.empty()) return;
  if (plan_id_ != 0) return learn_beside();
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
  if (batches) begin_plan(*batches);
}

/// While a plan runs, process sets without a part in it are served as always. When they repeat themselves it ends, for
/// one with all of them.
void Coordinator::learn_beside() {
  for (const Ready& ready : ready_) {
    if (ready.cache_id == TensorRef::kUncached) continue;
    if (beside_.size() >= kMostBeside) beside_.clear();
    if (++beside_[ready.cache_id] <= PlanLearner::kRounds) continue;
    learner_.outgrown();
    return end_plan();
  }
}

void Coordinator::begin_plan(const std::vector<std::vector<std::uint32_t>>& batches) {
  std::vector<PlannedBatch> planned;
  for (const std::vector<std::uint32_t>& batch : batches) {
    PlannedBatch& one = planned.emplace_back();
    for (const std::uint32_t id : batch) {
      const ResponseCache::Slot* slot = cache_.find(id);
      if (slot == nullptr || slot->evicted_in != 0 || !slot->told) return;
      one.process_set = slot->key.process_set;
      one.cache_ids.push_back(id);
    }
  }
  plan_id_ = ++last_plan_id_;
  plan_batches_ = batches.size();
  plan_sequence_ = sequence_ + 1;
  beside_.clear();
  items_.push_back(PlanDecision{plan_id_, std::move(planned)});
  // The ranks keep what they have announced and was not decided: it runs in the plan, or is announced again after it.
  entries_.clear();
  groups_.clear();
}

void Coordinator::end_plan() { items_.push_back(PlanEndDecision{std::exchange(plan_id_, 0)}); }

std::uint32_t Coordinator::propose(const Knobs& knobs) {
  plan_ready();                   // what was ready before the change belongs to the old setting
  if (plan_id_ != 0) end_plan();  // all leave it before they change
  switch_to(knobs);
  return epoch_;
}

void Coordinator::switch_to(const Knobs& knobs) {
  learner_.reset();
  knobs_ = knobs;
  items_.push_back(KnobsDecision{++epoch_, knobs_});
  trim_cache();
}

}  // namespace ringtune
