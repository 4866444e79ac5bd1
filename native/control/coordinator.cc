#include "control/coordinator.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "fusion/plan.h"

namespace ringtune {

Coordinator::Coordinator(int size, const Knobs& knobs, const StallLimits& stall, bool plans)
    : size_(size),
      knobs_(knobs),
      stall_(stall),
      seen_(static_cast<std::size_t>(size), 0),
      waiting_(static_cast<std::size_t>(size), false),
      plans_(plans),
      left_(static_cast<std::size_t>(size), false) {
  // The ranks may have been started with different settings: rank 0's hold, from the first decision on.
  items_.push_back(KnobsDecision{epoch_, knobs_});
}

void Coordinator::announced(int from, const WorkerNews& message, std::int64_t now_ns) {
  const auto index = static_cast<std::size_t>(from);
  seen_[index] = std::max(seen_[index], message.seen);
  drop_tombstones();
  note_steps(message.steps);
  waiting_[index] = message.waiting;
  // Announced before the rank saw the plan: there it was taken over into the plan, or is announced again after it.
  if (message.seen < plan_sequence_) return;
  if (plan_id_ != 0 && message.left_plan == plan_id_) end_plan(message.plan_rounds);
  for (const std::uint32_t id : message.cached) {
    const auto slot = slots_.find(id);
    if (slot == slots_.end()) {
      throw Protocol("rank " + std::to_string(from) + " announced the unknown cache number " + std::to_string(id));
    }
    add(from, slot->second.by_rank[index], id, now_ns);
  }
  for (const Request& request : message.requests) {
    add(from, std::make_shared<const Request>(request), TensorRef::kUncached, now_ns);
  }
  if (message.leaving && !left_[index]) rank_left(from);
}

void Coordinator::add(int from, SharedRequest request, std::uint32_t cache_id, std::int64_t now_ns) {
  const std::string& name = request->name;
  const auto [it, fresh] = entries_.try_emplace(name);
  Entry& entry = it->second;
  if (fresh) {
    entry.by_rank.resize(static_cast<std::size_t>(size_));
    entry.first_ns = entry.warned_ns = now_ns;
    entry.cache_id = cache_id;
    if (stall_.warning_ns > 0) next_stall_ns_ = std::min(next_stall_ns_, now_ns + stall_.warning_ns);
  }
  SharedRequest& mine = entry.by_rank[static_cast<std::size_t>(from)];
  if (mine != nullptr) throw Protocol("rank " + std::to_string(from) + " announced tensor '" + name + "' twice");
  entry.in_full = entry.in_full || cache_id == TensorRef::kUncached || cache_id != entry.cache_id;
  mine = std::move(request);
  ++entry.count;
  if (entry.count == size_) {
    auto node = entries_.extract(it);
    complete(node.key(), std::move(node.mapped()), now_ns);
  } else if (left_count_ > 0) {
    const SharedRequest doomed = entry.by_rank[static_cast<std::size_t>(from)];
    entries_.erase(it);
    fail(*doomed, FailureKind::kShutDown, leavers_message(doomed->name));
  }
}

void Coordinator::complete(const std::string& name, Entry entry, std::int64_t now_ns) {
  const auto known = ids_by_name_.find(name);
  Ready ready;
  ready.request = entry.by_rank.front();
  ready.ready_ns = now_ns;
  const bool by_number = !entry.in_full && known != ids_by_name_.end() && known->second == entry.cache_id;
  if (!by_number) {
    std::vector<const Request*> pointers;
    pointers.reserve(entry.by_rank.size());
    for (const SharedRequest& request : entry.by_rank) pointers.push_back(request.get());
    if (known != ids_by_name_.end()) evict(known->second);
    if (const auto mismatch = find_mismatch(pointers)) {
      fail(*ready.request, FailureKind::kMismatch, *mismatch);
      return;
    }
  }
  if (ready.request->kind == CollectiveKind::kAllgather) {
    for (const SharedRequest& request : entry.by_rank) {
      ready.rows.push_back(request->shape.empty() ? 1 : request->shape.front());
    }
  }
  if (by_number) {
    ready.cache_id = entry.cache_id;
    Slot& slot = slots_.at(entry.cache_id);
    least_used_.splice(least_used_.end(), least_used_, slot.use);
  } else {
    ready.cache_id = number(name, std::move(entry.by_rank));
  }
  enqueue(std::move(ready));
}

void Coordinator::enqueue(Ready ready) {
  const std::uint32_t group_size = ready.request->group_size;
  if (group_size == 0) {
    ready_.push_back(std::move(ready));
    return;
  }
  const std::string name = ready.request->group;
  Group& group = groups_[name];
  if (!group.failure.empty()) {
    fail(*ready.request, FailureKind::kMismatch, group.failure);
    return;
  }
  group.members.push_back(std::move(ready));
  if (group.members.size() < group_size) return;
  std::move(group.members.begin(), group.members.end(), std::back_inserter(ready_));
  groups_.erase(name);
}

/// Fails a tensor, and with it what waits in its group: half a group must not hang or run.
void Coordinator::fail(const Request& request, FailureKind kind, const std::string& message) {
  items_.push_back(FailureDecision{kind, request.name, message});
  learner_.disturbed();
  if (request.group_size == 0) return;
  const std::string name = request.group;
  Group& group = groups_[name];
  if (group.failure.empty()) group.failure = "another member of its group failed: " + message;
  for (const Ready& member : group.members) {
    items_.push_back(FailureDecision{kind, member.request->name, group.failure});
  }
  group.failed += 1 + static_cast<std::uint32_t>(group.members.size());
  group.members.clear();
  if (group.failed >= request.group_size) groups_.erase(name);
}

/// How the ranks are to find a tensor: by number once they know it; a number evicted meanwhile is not used any more.
TensorRef Coordinator::reference(const Ready& ready) {
  const auto slot = slots_.find(ready.cache_id);
  if (slot == slots_.end() || slot->second.evicted_in != 0) return {TensorRef::kUncached, ready.request->name};
  if (slot->second.told) return {ready.cache_id, ""};
  slot->second.told = true;
  return {ready.cache_id, ready.request->name};
}

void Coordinator::plan_ready() {
  if (ready_.empty()) return;
  std::vector<ReadyTensor> tensors;
  tensors.reserve(ready_.size());
  for (const Ready& ready : ready_) {
    const Request& request = *ready.request;
    tensors.push_back({request.kind, request.dtype, request.op, byte_count(request), request.group});
  }
  for (const std::vector<std::uint32_t>& members : plan(tensors, knobs_.fusion_bytes)) {
    BatchDecision batch;
    batch.batch_id = next_batch_id_++;
    for (const std::uint32_t index : members) batch.tensors.push_back(reference(ready_[index]));
    batch.rows = std::move(ready_[members.front()].rows);
    items_.push_back(std::move(batch));
  }
  learn();
  ready_.clear();
}

/// Shows the learner what has just been decided.
void Coordinator::learn() {
  if (!plans_ || !knobs_.plan || left_count_ > 0) return;
  const bool awaited = std::find(waiting_.begin(), waiting_.end(), true) != waiting_.end();
  std::optional<std::vector<std::vector<std::uint32_t>>> batches;
  for (const Ready& ready : ready_) {
    const auto slot = slots_.find(ready.cache_id);
    const bool live = slot != slots_.end() && slot->second.evicted_in == 0;
    batches = learner_.decided(
        {live ? ready.cache_id : TensorRef::kUncached, ready.request, ready.ready_ns, sequence_ + 1, awaited}, knobs_);
  }
  // Only when nothing of the next round has been decided: the ranks begin the plan at its first batch.
  if (batches) begin_plan(*std::move(batches));
}

void Coordinator::begin_plan(std::vector<std::vector<std::uint32_t>> batches) {
  for (const std::vector<std::uint32_t>& batch : batches) {
    for (const std::uint32_t id : batch) {
      const auto slot = slots_.find(id);
      if (slot == slots_.end() || slot->second.evicted_in != 0 || !slot->second.told) return;
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

std::optional<Decisions> Coordinator::take_decisions() {
  plan_ready();
  if (items_.empty()) return std::nullopt;
  return Decisions{++sequence_, std::exchange(items_, {})};
}

void Coordinator::tick(std::int64_t now_ns, std::vector<Action>& actions) {
  if (entries_.empty()) {
    next_stall_ns_ = kNever;
    return;
  }
  if (now_ns < next_stall_ns_) return;
  next_stall_ns_ = kNever;
  for (auto& [name, entry] : entries_) {
    const std::int64_t age_ns = now_ns - entry.first_ns;
    if (now_ns - entry.warned_ns >= stall_.warning_ns) {
      entry.warned_ns = now_ns;
      actions.push_back(StallAction{name, missing_ranks(entry), age_ns});
      items_.push_back(StallDecision{name});
    }
    if (stall_.shutdown_ns > 0 && age_ns >= stall_.shutdown_ns) {
      const std::vector<int> missing = missing_ranks(entry);
      items_.push_back(AbortDecision{"tensor '" + name + "' has waited " + std::to_string(age_ns / 1'000'000'000) +
                                     " s for rank" + (missing.size() > 1 ? "s " : " ") + rank_list(missing) +
                                     ", longer than the stall shutdown time: the job ends"});
    }
    std::int64_t due_ns = entry.warned_ns + stall_.warning_ns;
    if (stall_.shutdown_ns > 0) due_ns = std::min(due_ns, std::max(entry.first_ns + stall_.shutdown_ns, now_ns + 1));
    next_stall_ns_ = std::min(next_stall_ns_, due_ns);
  }
}

std::vector<int> Coordinator::missing_ranks(const Entry& entry) const {
  std::vector<int> missing;
  for (int rank = 0; rank < size_; ++rank) {
    if (entry.by_rank[static_cast<std::size_t>(rank)] == nullptr) missing.push_back(rank);
  }
  return missing;
}

void Coordinator::rank_left(int rank) {
  left_[static_cast<std::size_t>(rank)] = true;
  seen_[static_cast<std::size_t>(rank)] = std::numeric_limits<std::uint64_t>::max();
  ++left_count_;
  plan_ready();  // the leaver still takes part in what comes before its LeftDecision
  items_.push_back(LeftDecision{rank});
  // Whatever is incomplete needs the leaver: even what it has announced, since it will not run it any more.
  for (auto& [name, entry] : std::exchange(entries_, {})) {
    const auto some =
        std::find_if(entry.by_rank.begin(), entry.by_rank.end(), [](const auto& r) { return r != nullptr; });
    fail(**some, FailureKind::kShutDown, leavers_message(name));
  }
  for (auto& [name, group] : std::exchange(groups_, {})) {
    for (const Ready& member : group.members) {
      items_.push_back(
          FailureDecision{FailureKind::kShutDown, member.request->name, leavers_message(member.request->name)});
    }
  }
}

std::string Coordinator::leavers_message(const std::string& name) const {
  std::vector<int> leavers;
  for (int rank = 0; rank < size_; ++rank) {
    if (left_[static_cast<std::size_t>(rank)]) leavers.push_back(rank);
  }
  return "tensor '" + name + "' cannot complete: rank" + (leavers.size() > 1 ? "s " : " ") + rank_list(leavers) +
         (leavers.size() > 1 ? " have" : " has") +
         " shut down. All ranks must run the same collectives before shutdown().";
}

void Coordinator::note_steps(const std::vector<StepReport>& steps) {
  for (const StepReport& report : steps) {
    if (report.step <= world_step_.step && world_step_.duration_ns > 0) continue;
    auto& [count, longest_ns] = step_counts_[report.step];
    ++count;
    longest_ns = std::max(longest_ns, report.duration_ns);
    if (count == size_) {
      world_step_ = {report.step, longest_ns};
      step_counts_.erase(step_counts_.begin(), step_counts_.upper_bound(report.step));
    }
  }
  constexpr std::size_t kKept = 256;  // ranks that count steps differently must not pile them up
  while (step_counts_.size() > kKept) step_counts_.erase(step_counts_.begin());
}

std::uint32_t Coordinator::number(const std::string& name, std::vector<SharedRequest> by_rank) {
  if (knobs_.cache_capacity == 0) return TensorRef::kUncached;
  const std::uint32_t id = next_cache_id_++;
  // Ranks that sent equal requests share one: a cached tensor costs one request, not `size`.
  for (SharedRequest& request : by_rank) {
    if (*request == *by_rank.front()) request = by_rank.front();
  }
  Slot& slot = slots_[id];
  slot.name = name;
  slot.by_rank = std::move(by_rank);
  slot.use = least_used_.insert(least_used_.end(), id);
  ids_by_name_[name] = id;
  trim_cache();
  return id;
}

void Coordinator::trim_cache() {
  auto it = least_used_.begin();
  while (least_used_.size() > knobs_.cache_capacity && it != least_used_.end()) {
    const std::uint32_t id = *it++;
    // Some rank has announced it by this number, others are about to: it leaves the cache at a later turn.
    if (entries_.count(slots_.at(id).name) > 0) continue;
    evict(id);
  }
}

void Coordinator::evict(std::uint32_t id) {
  Slot& slot = slots_.at(id);
  slot.evicted_in = sequence_ + 1;
  least_used_.erase(slot.use);
  ids_by_name_.erase(slot.name);
  tombstones_.push_back(id);
  if (!items_.empty()) {
    if (auto* last = std::get_if<EvictDecision>(&items_.back())) {
      last->cache_ids.push_back(id);
      return;
    }
  }
  items_.push_back(EvictDecision{{id}});
}

void Coordinator::drop_tombstones() {
  if (tombstones_.empty()) return;
  const std::uint64_t seen_by_all = *std::min_element(seen_.begin(), seen_.end());
  std::erase_if(tombstones_, [&](std::uint32_t id) {
    if (slots_.at(id).evicted_in > seen_by_all) return false;
    slots_.erase(id);
    return true;
  });
}

void Coordinator::validate_state() const {
  RINGTUNE_CHECK_EQ(least_used_.size(), ids_by_name_.size());
  RINGTUNE_CHECK_EQ(slots_.size(), least_used_.size() + tombstones_.size());
  for (const auto& [name, entry] : entries_) {
    RINGTUNE_CHECK_LT(entry.count, size_, "'", name, "' is complete and still pending");
    RINGTUNE_CHECK_EQ(static_cast<int>(missing_ranks(entry).size()), size_ - entry.count, "'", name, "'");
  }
  for (const auto& [name, id] : ids_by_name_) RINGTUNE_CHECK_EQ(slots_.at(id).name, name);
}

}  // namespace ringtune
