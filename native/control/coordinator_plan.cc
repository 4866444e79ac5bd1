// The plan of a steady state: when it begins and ends, and that knobs wait for its end.
#include <algorithm>
#include <utility>

#include "control/coordinator.h"

namespace ringtune {

/// Shows the learner what has just been decided.
void Coordinator::learn() {
  if (!plans_ || !knobs_.plan || !left_.empty()) return;
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
  if (batches) begin_plan(*std::move(batches));
}

void Coordinator::begin_plan(std::vector<std::vector<std::uint32_t>> batches) {
  for (const std::vector<std::uint32_t>& batch : batches) {
    for (const std::uint32_t id : batch) {
      const ResponseCache::Slot* slot = cache_.find(id);
      if (slot == nullptr || slot->evicted_in != 0 || !slot->told) return;
    }
  }
  plan_id_ = ++last_plan_id_;
  plan_batches_ = batches.size();
  plan_sequence_ = sequence_ + 1;
  items_.push_back(PlanDecision{plan_id_, std::move(batches)});
  // The ranks keep what they have announced and was not decided: it runs in the plan, or is announced again after it.
  entries_.clear();
  groups_.clear();
}

void Coordinator::end_plan(std::uint64_t rounds) {
  items_.push_back(PlanEndDecision{plan_id_});
  plan_id_ = 0;
  learner_.ended(rounds, plan_batches_);
  for (const Knobs& knobs : std::exchange(proposed_, {})) switch_to(knobs);
}

std::uint32_t Coordinator::propose(const Knobs& knobs) {
  plan_ready();  // what was ready before the change belongs to the old setting
  if (plan_id_ != 0) {
    // Rank 0 leaves the plan first: nobody may change in its middle.
    proposed_.push_back(knobs);
    return epoch_ + static_cast<std::uint32_t>(proposed_.size());
  }
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
