// What the coordinator makes of tensors that wait for ranks that do not come.
#include <algorithm>

#include "control/coordinator.h"

namespace ringtune {

void Coordinator::tick(std::int64_t now_ns, std::vector<Action>& actions) {
  if (entries_.empty()) {
    next_stall_ns_ = kNever;
    suspicion_pause_ns_ = StallLimits::kSuspiciousNs;
    suspected_ns_ = 0;
    return;
  }
  if (now_ns < next_stall_ns_) return;
  next_stall_ns_ = kNever;
  const bool due = std::any_of(entries_.begin(), entries_.end(), [&](const auto& item) {
    return stall_.warning_ns > 0 && now_ns - item.second.warned_ns >= stall_.warning_ns;
  });
  // Tensors that came a little later, as the gradients of one step do, are reported together.
  const std::int64_t overdue_ns = stall_.warning_ns - stall_.warning_ns / 8;
  for (auto& [key, entry] : entries_) {
    const std::int64_t age_ns = now_ns - entry.first_ns;
    const Request& request = *entry.first;
    if (due && now_ns - entry.warned_ns >= overdue_ns) {
      entry.warned_ns = now_ns;
      actions.push_back(stall_of(key, entry, now_ns));
      items_.push_back(StallDecision{key.name, key.process_set});
    }
    if (age_ns >= stall_.longest_wait_ns(request)) {
      items_.push_back(AbortDecision{overdue_message(request, age_ns, missing_ranks(key, entry).ranks(), hosts_)});
    }
    const std::int64_t due_ns = stall_.due_ns(request, entry.first_ns, entry.warned_ns);
    next_stall_ns_ = std::min(next_stall_ns_, std::max(due_ns, now_ns + 1));
  }
  if (stall_.warning_ns > 0) suspect(now_ns, actions);
}

/// Every rank may wait for another: each has reported a tensor that waits for ranks which have reported others.
void Coordinator::suspect(std::int64_t now_ns, std::vector<Action>& actions) {
  RankSet waiting = joined_;
  waiting.insert(left_);
  std::int64_t newest_ns = suspected_ns_;
  for (const auto& [key, entry] : entries_) {
    waiting.insert(entry.announced);
    newest_ns = std::max(newest_ns, entry.first_ns);
  }
  std::int64_t next_ns = newest_ns + suspicion_pause_ns_;
  if (now_ns >= next_ns) {
    if (waiting.count() == size_) {
      SuspicionAction action;
      for (const auto& [key, entry] : entries_) action.tensors.push_back(stall_of(key, entry, now_ns));
      actions.emplace_back(std::move(action));
    }
    suspected_ns_ = now_ns;
    suspicion_pause_ns_ = std::min(2 * suspicion_pause_ns_, std::max(stall_.warning_ns, StallLimits::kSuspiciousNs));
    next_ns = now_ns + suspicion_pause_ns_;
  }
  next_stall_ns_ = std::min(next_stall_ns_, next_ns);
}

StallAction Coordinator::stall_of(const TensorKey& key, const Entry& entry, std::int64_t now_ns) const {
  return {key.name, missing_ranks(key, entry).ranks(), now_ns - entry.first_ns, key.process_set,
          title_of(*entry.first)};
}

}  // namespace ringtune
