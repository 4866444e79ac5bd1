// What the coordinator decides besides failures: batches, knobs, process sets, joins, departures, stalls.
#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "control/coordinator.h"
#include "fusion/plan.h"

namespace ringtune {

/// How the ranks are to find a tensor: by number once they know it; a number evicted meanwhile is not used any more.
TensorRef Coordinator::reference(const Ready& ready) {
  ResponseCache::Slot* slot = cache_.find(ready.cache_id);
  if (slot == nullptr || slot->evicted_in != 0) return {TensorRef::kUncached, ready.request->name};
  if (slot->known) return {ready.cache_id, ""};
  slot->known = true;
  return {ready.cache_id, ready.request->name};
}

void Coordinator::schedule_ready() {
  if (ready_.empty()) return;
  std::vector<std::pair<std::uint32_t, const RankSet*>> compartments;
  std::vector<ReadyTensor> tensors;
  tensors.reserve(ready_.size());
  for (const Ready& ready : ready_) {
    const Request& request = *ready.request;
    const auto same = [&](const auto& other) {
      return other.first == request.process_set && *other.second == ready.absent;
    };
    const auto found = std::find_if(compartments.begin(), compartments.end(), same);
    const auto compartment = static_cast<std::uint32_t>(found - compartments.begin());
    if (found == compartments.end()) compartments.emplace_back(request.process_set, &ready.absent);
    tensors.push_back({request.kind, request.dtype, request.op, wire_byte_count(request), request.group, compartment,
                       wire_dtype(request), request.place, static_cast<std::uint8_t>(request.data_path)});
  }
  for (const std::vector<std::uint32_t>& members : plan(tensors, knobs_.fusion_bytes)) decide_batch(members);
  learn();
  ready_.clear();
}

void Coordinator::decide_batch(const std::vector<std::uint32_t>& members) {
  const Ready& first = ready_[members.front()];
  BatchDecision batch;
  batch.batch_id = next_batch_id_++;
  batch.process_set = first.request->process_set;
  batch.absent = first.absent;
  for (const std::uint32_t index : members) {
    const Ready& ready = ready_[index];
    batch.tensors.push_back(reference(ready));
    if (!first.absent.empty()) batch.templates.push_back({ready.request, first.absent});
  }
  if (!batch.tensors.front().name.empty()) {
    const ResponseCache::Slot* slot = cache_.find(first.cache_id);
    batch.rows = slot != nullptr ? slot->rows : first.rows;
  }
  items_.push_back(std::move(batch));
}

std::optional<Decisions> Coordinator::take_decisions() {
  schedule_ready();
  joined_lately_ = false;
  if (items_.empty()) return std::nullopt;
  return Decisions{++sequence_, std::exchange(items_, {})};
}

void Coordinator::change_sets(const Request& request) {
  learner_.disturbed();
  schedule_ready();  // all ranks make or drop the set's links between the same two batches
  if (request.kind == CollectiveKind::kAddProcessSet) {
    const RankSet members = RankSet::of(request.members);
    if (members.empty() || !sets_.members(ProcessSets::kGlobal)->includes(members)) {
      return fail(request, FailureKind::kInvalidArgument,
                  "a process set needs ranks of 0 to " + std::to_string(size_ - 1) + ", got [" +
                      rank_list(members.ranks()) + "]");
    }
    if (const auto twin = sets_.find(members)) {
      return fail(request, FailureKind::kInvalidArgument,
                  "Attempted to add a duplicate process set: ranks [" + rank_list(members.ranks()) +
                      "] are process set " + std::to_string(*twin) + " already");
    }
    items_.push_back(SetDecision{request.name, true, sets_.add(members), members});
  } else if (request.subject == ProcessSets::kGlobal || sets_.members(request.subject) == nullptr) {
    fail(request, FailureKind::kInvalidArgument,
         "process set " + std::to_string(request.subject) + " cannot be removed: it is " +
             (request.subject == ProcessSets::kGlobal ? "the set of all ranks" : "not registered"));
  } else {
    const RankSet members = *sets_.members(request.subject);
    remove_set(request.subject);
    items_.push_back(SetDecision{request.name, false, request.subject, members});
  }
}

/// What waits in the set fails; its numbers stay known until no rank can use them any more.
void Coordinator::remove_set(std::uint32_t id) {
  const std::string why = "process set " + std::to_string(id) + " was removed while it was pending";
  for (auto it = entries_.begin(); it != entries_.end();) {
    if (it->first.process_set == id) {
      doom(*it->second.first, FailureKind::kMismatch, why);
      it = entries_.erase(it);
    } else {
      ++it;
    }
  }
  for (auto it = groups_.begin(); it != groups_.end();) {
    if (it->first.process_set == id) {
      fail_members(it->second, FailureKind::kMismatch, why);
      it = groups_.erase(it);
    } else {
      ++it;
    }
  }
  for (const std::uint32_t number : cache_.ids_of_set(id)) evict(number);
  cache_.mark_set_removed(id);
  sets_.remove(id);
}

/// Ranks have run out of data: allreduces go on without them until all have.
void Coordinator::join(const RankSet& ranks, const Request& request, std::int64_t now_ns) {
  if (request.process_set != ProcessSets::kGlobal || (!joined_.empty() && request.name != join_name_)) {
    throw Protocol("join '" + request.name + "' is not for the global process set, or not '" + join_name_ + "'");
  }
  if (joined_.intersects(ranks)) throw Protocol("a rank joined twice");
  if (!left_.empty()) return doom(request, FailureKind::kShutDown, leavers_message(request));
  join_name_ = request.name;
  joined_.insert(ranks);
  last_joined_ = joined_lately_ ? std::max(last_joined_, ranks.last()) : ranks.last();
  joined_lately_ = true;
  resettle(now_ns);
  if (joined_.count() < size_) return;
  schedule_ready();
  items_.push_back(JoinDecision{last_joined_});
  joined_ = {};
}

/// Who has joined or left has changed: some tensors are complete now, or hopeless.
void Coordinator::resettle(std::int64_t now_ns) {
  std::vector<TensorKey> keys;
  for (const auto& [key, entry] : entries_) keys.push_back(key);
  for (const TensorKey& key : keys) settle(key, now_ns);
}

void Coordinator::ranks_left(const RankSet& ranks, const std::vector<Departure>& departures, std::int64_t now_ns) {
  schedule_ready();                       // the leavers still take part in all that precedes their LeftDecision
  if (schedule_id_ != 0) end_schedule();  // of sets without them: nobody may be in it when rank 0 goes
  left_.insert(ranks);
  const auto depart = [&](Departure departure) {
    departures_.note(departure);
    items_.push_back(LeftDecision{std::move(departure)});
  };
  RankSet silent = ranks;
  for (const Departure& departure : departures) {  // in the order in which they came: the first error is the cause
    if (!silent.contains(departure.rank)) continue;
    silent = silent.without(RankSet::one(departure.rank));
    depart(departure);
  }
  for (const int rank : silent.ranks()) depart({.rank = rank});
  // Whatever is incomplete and needs a leaver: even what it has reported, since it will not run it any more.
  resettle(now_ns);
  for (auto it = groups_.begin(); it != groups_.end();) {
    const auto& [name, group] = *it;
    if (!left_.intersects(*sets_.members(name.process_set))) {
      ++it;
      continue;
    }
    for (const Ready& member : group.members) {
      items_.push_back(FailureDecision{FailureKind::kShutDown, member.request->name, leavers_message(*member.request),
                                       name.process_set});
    }
    it = groups_.erase(it);
  }
  if (joined_.empty()) return;
  Request join;
  join.name = join_name_;
  join.kind = CollectiveKind::kJoin;
  doom(join, FailureKind::kShutDown, leavers_message(join));
  joined_ = {};
}

std::string Coordinator::leavers_message(const Request& request) const {
  return departures_.message(request, left_.intersection(*sets_.members(request.process_set)));
}

RankSet Coordinator::awaited(const TensorKey& key) const {
  const auto it = entries_.find(key);
  return it == entries_.end() ? RankSet() : missing_ranks(it->first, it->second);
}

RankSet Coordinator::missing_ranks(const TensorKey& key, const Entry& entry) const {
  return sets_.members(key.process_set)->without(entry.announced).without(joined_);
}

void Coordinator::note_steps(const std::vector<StepTally>& steps) {
  for (const StepTally& report : steps) {
    if (report.step <= world_step_.step && world_step_.duration_ns > 0) continue;
    auto& [count, longest_ns] = step_counts_[report.step];
    count += std::clamp(report.ranks, 0, size_);
    longest_ns = std::max(longest_ns, report.longest_ns);
    if (count >= size_) {
      world_step_ = {report.step, longest_ns};
      step_counts_.erase(step_counts_.begin(), step_counts_.upper_bound(report.step));
    }
  }
  constexpr std::size_t kKept = 256;  // ranks that count steps differently must not pile them up
  while (step_counts_.size() > kKept) step_counts_.erase(step_counts_.begin());
}

std::uint32_t Coordinator::number(const Ready& ready, std::vector<Variant> variants) {
  if (knobs_.cache_capacity == 0) return TensorRef::kUncached;
  ResponseCache::Slot slot;
  slot.key = key_of(*ready.request);
  slot.variants = std::move(variants);
  slot.rows = ready.rows;
  const std::uint32_t id = cache_.add(std::move(slot));
  trim_cache();
  return id;
}

void Coordinator::trim_cache() {
  // What some rank has reported by its number, others are about to: it leaves the cache at a later turn.
  const auto pending = [&](const TensorKey& key) { return entries_.count(key) > 0; };
  for (const std::uint32_t id : cache_.surplus(knobs_.cache_capacity, pending)) evict(id);
}

void Coordinator::evict(std::uint32_t id) {
  cache_.evict(id, sequence_ + 1);
  if (!items_.empty()) {
    if (auto* last = std::get_if<EvictDecision>(&items_.back())) {
      last->cache_ids.push_back(id);
      return;
    }
  }
  items_.push_back(EvictDecision{{id}});
}

void Coordinator::validate_state() const {
  cache_.validate_state();
  for (const auto& [key, entry] : entries_) {
    const RankSet& members = *sets_.members(key.process_set);
    RINGTUNE_CHECK(members.includes(entry.announced), "'", key.name,
                   "' was submitted by ranks that are not in its set");
    RINGTUNE_CHECK_LT(entry.announced.count(), members.count(), "'", key.name, "' is complete and still pending");
    RINGTUNE_CHECK(!left_.intersects(members), "'", key.name, "' waits for a rank that has left");
  }
}

}  // namespace ringtune
