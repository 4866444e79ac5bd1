#include "control/aggregator.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/error.h"
#include "control/process_sets.h"

namespace ringtune {
namespace {

/// Throws Protocol unless `from`, which stands for `own`, may speak for these ranks.
const RankSet& spoken_for(int from, const RankSet& own, const RankSet& ranks) {
  if (ranks.empty() || !own.includes(ranks)) {
    throw Protocol("rank " + std::to_string(from) + " spoke for ranks " + rank_list(ranks.ranks()) +
                   ", which are not below it");
  }
  return ranks;
}

}  // namespace

Aggregator::Aggregator(int rank, const TreePlace& place) : rank_(rank), below_(place.ranks) {
  RINGTUNE_CHECK(rank != 0 && !place.children.empty(), "rank ", rank, " stands between nobody and the coordinator");
  children_[rank].ranks = RankSet::one(rank);
  for (const TreeChild& child : place.children) children_[child.rank].ranks = child.ranks;
  members_[ProcessSets::kGlobal] = std::make_shared<const RankSet>(below_);
}

void Aggregator::announced(int from, const WorkerNews& news, std::int64_t now_ns) {
  const auto found = children_.find(from);
  if (found == children_.end()) {
    throw Protocol("rank " + std::to_string(from) + " is no child of rank " + std::to_string(rank_) + " in the tree");
  }
  Child& child = found->second;
  child.waiting = news.waiting;
  for (const StepTally& report : news.steps) {
    StepTally& tally = steps_.try_emplace(report.step, StepTally{report.step, 0, 0}).first->second;
    tally.longest_ns = std::max(tally.longest_ns, report.longest_ns);
    tally.ranks += std::clamp(report.ranks, 0, child.ranks.count());
  }
  constexpr std::size_t kKept = 256;  // ranks that count steps differently must not pile them up
  while (steps_.size() > kKept) steps_.erase(steps_.begin());
  if (news.seen >= schedule_sequence_) take_over(from, news, now_ns);
  child.acknowledged = std::max(child.acknowledged, news.acknowledged);  // after its numbers have been understood
}

void Aggregator::take_over(int from, const WorkerNews& news, std::int64_t now_ns) {
  const RankSet& own = children_.at(from).ranks;
  for (const std::uint32_t id : news.cached) {
    add_numbered(id, number(from, id).members->intersection(own), news.seen, now_ns);
  }
  for (const PartialNews& some : news.partial) {
    (void)number(from, some.cache_id);
    add_numbered(some.cache_id, spoken_for(from, own, some.ranks), news.seen, now_ns);
  }
  for (const Variant& variant : news.requests) {
    (void)spoken_for(from, own, variant.ranks);
    add_in_full(variant, news.seen, now_ns);
  }
  if (!news.leaving.empty()) {
    if (leaving_.empty()) leaving_since_ns_ = now_ns;
    leaving_.insert(spoken_for(from, own, news.leaving).without(left_));
    departures_.insert(departures_.end(), news.departures.begin(), news.departures.end());
  }
  if (news.left_schedule > sent_schedule_) {  // one report will do
    left_schedule_ = sent_schedule_ = news.left_schedule;
    schedule_rounds_ = news.schedule_rounds;
  }
}

const Aggregator::Number& Aggregator::number(int from, std::uint32_t id) const {
  const auto found = numbers_.find(id);
  if (found == numbers_.end()) {
    throw Protocol("rank " + std::to_string(from) + " submitted the unknown cache number " + std::to_string(id));
  }
  return found->second;
}

void Aggregator::add_numbered(std::uint32_t id, const RankSet& ranks, std::uint64_t seen, std::int64_t now_ns) {
  const TensorKey& key = numbers_.at(id).key;
  Entry* entry = count_in(key, ranks, seen, now_ns);
  if (entry == nullptr) return;
  // A new number comes with the batch that every user of an old one has taken part in.
  if (entry->number != id && !entry->by_number.empty()) {
    throw Protocol("tensor '" + key.name + "' was submitted by two cache numbers");
  }
  entry->number = id;
  entry->by_number.insert(ranks);
}

void Aggregator::add_in_full(const Variant& variant, std::uint64_t seen, std::int64_t now_ns) {
  if (variant.request->kind == CollectiveKind::kJoin) {
    add_variant(joins_, variant.request, variant.ranks);
    joined_.insert(variant.ranks);
    return;
  }
  Entry* entry = count_in(key_of(*variant.request), variant.ranks, seen, now_ns);
  if (entry != nullptr) add_variant(entry->in_full, variant.request, variant.ranks);
}

/// Null when the tensor has failed since: these ranks have failed it too, or will when they see the decision.
Aggregator::Entry* Aggregator::count_in(const TensorKey& key, const RankSet& ranks, std::uint64_t seen,
                                        std::int64_t now_ns) {
  const auto failed = failed_.find(key);
  if (failed != failed_.end() && seen < failed->second) return nullptr;
  auto& item = *entries_.try_emplace(key).first;
  Entry& entry = item.second;
  if (entry.announced_by.intersects(ranks)) {
    throw Protocol("rank " + std::to_string(entry.announced_by.intersection(ranks).first()) + " submitted tensor '" +
                   key.name + "' twice");
  }
  entry.announced_by.insert(ranks);
  if (!entry.held) {
    entry.held = true;
    entry.held_since_ns = now_ns;
    held_.push_back(&item);
  }
  entry.going = goes(key, entry);
  some_go_ = some_go_ || entry.going;
  return &entry;
}

/// Whether there is nothing more to wait for.
bool Aggregator::goes(const TensorKey& key, const Entry& entry) const {
  const auto members = members_.find(key.process_set);
  if (members == members_.end()) return true;  // the set is gone: the coordinator will fail the tensor
  const int missing = members->second->count() - entry.announced_by.count();
  if (missing <= 0) return true;
  if (!left_.empty() && key.process_set == ProcessSets::kGlobal) return true;  // and here
  if (joined_.empty() && left_.empty()) return false;
  return entry.announced_by.includes(members->second->without(joined_).without(left_));
}

void Aggregator::decided(const Decisions& decisions) {
  RINGTUNE_CHECK_EQ(decisions.sequence, seen_ + 1, "decisions must arrive in order");
  seen_ = decisions.sequence;
  for (const Decision& decision : decisions.items) {
    if (const auto* batch = std::get_if<BatchDecision>(&decision)) {
      note(*batch);
    } else if (const auto* failure = std::get_if<FailureDecision>(&decision)) {
      note(*failure);
    } else if (const auto* evict = std::get_if<EvictDecision>(&decision)) {
      for (const std::uint32_t id : evict->cache_ids) evicted_.emplace_back(seen_, id);
    } else if (const auto* left = std::get_if<LeftDecision>(&decision)) {
      note(*left);
    } else if (std::holds_alternative<ScheduleDecision>(decision)) {
      begin_schedule();
    } else if (const auto* set = std::get_if<SetDecision>(&decision)) {
      note(*set);
    } else if (std::holds_alternative<JoinDecision>(decision)) {
      joined_ = {};
    }
  }
}

void Aggregator::note(const BatchDecision& batch) {
  for (const TensorRef& tensor : batch.tensors) {
    if (tensor.name.empty()) {
      const auto known = numbers_.find(tensor.cache_id);
      RINGTUNE_CHECK(known != numbers_.end(), "no tensor has cache number ", tensor.cache_id);
      forget(known->second.key);
      continue;
    }
    TensorKey key{batch.process_set, tensor.name};
    forget(key);
    if (tensor.cache_id == TensorRef::kUncached) continue;
    const auto members = members_.find(batch.process_set);
    RINGTUNE_CHECK(members != members_.end(), "a batch is for the unknown process set ", batch.process_set);
    numbers_.insert_or_assign(tensor.cache_id, Number{std::move(key), members->second});
  }
}

void Aggregator::note(const FailureDecision& failure) {
  TensorKey key{failure.process_set, failure.name};
  forget(key);
  failed_[key] = seen_;
  failures_.emplace_back(seen_, std::move(key));
}

void Aggregator::note(const SetDecision& change) {
  forget({ProcessSets::kGlobal, change.name});
  if (change.added) {
    members_[change.id] = std::make_shared<const RankSet>(change.members.intersection(below_));
    return;
  }
  members_.erase(change.id);
  for (Entries::value_type* item : held_) {
    if (item->first.process_set == change.id) item->second.going = some_go_ = true;
  }
}

/// What is held now waits for a rank that will not come, or must be failed by the coordinator.
void Aggregator::note(const LeftDecision& left) {
  const RankSet one = RankSet::one(left.departure.rank);
  left_.insert(one);
  leaving_ = leaving_.without(one);
  joined_ = {};  // a join fails when somebody leaves
  for (Entries::value_type* item : held_) item->second.going = some_go_ = true;
}

/// What was reported before belongs to the schedule, or is reported again after it.
void Aggregator::begin_schedule() {
  schedule_sequence_ = seen_;
  entries_.clear();
  held_.clear();
  some_go_ = false;
  joins_.clear();
  joined_ = {};
  leaving_ = sent_leaving_ = {};
  departures_.clear();
  left_schedule_ = 0;
}

void Aggregator::forget(const TensorKey& key) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return;
  if (found->second.held) held_.erase(std::find(held_.begin(), held_.end(), &*found));
  entries_.erase(found);
}

std::optional<WorkerNews> Aggregator::take(std::int64_t now_ns) {
  const bool all = all_goes(now_ns);
  if (!all && !some_go_ && !wait_goes()) return std::nullopt;
  WorkerNews news;
  news.seen = seen_;
  news.waiting = sent_waiting_ = anyone_waits();
  std::vector<Entries::value_type*> kept;
  for (Entries::value_type* item : held_) {
    if (all || item->second.going) {
      write(item->first, item->second, news);
    } else {
      kept.push_back(item);
    }
  }
  held_ = std::move(kept);
  some_go_ = false;
  if (all) {
    for (const Variant& join : joins_) news.requests.push_back(join);
    joins_.clear();
    sent_leaving_.insert(leaving_);
    news.leaving = std::exchange(leaving_, {});
    news.departures = std::exchange(departures_, {});
  }
  for (const auto& [step, tally] : steps_) news.steps.push_back(tally);
  steps_.clear();
  news.left_schedule = std::exchange(left_schedule_, 0);
  news.schedule_rounds = schedule_rounds_;
  acknowledge();
  news.acknowledged = acknowledged_;
  return news;
}

void Aggregator::write(const TensorKey& key, Entry& entry, WorkerNews& news) const {
  if (!entry.by_number.empty()) {
    const auto members = members_.find(key.process_set);
    const bool whole = members != members_.end() && members->second == numbers_.at(entry.number).members &&
                       *members->second == entry.by_number;
    if (whole) {
      news.cached.push_back(entry.number);
    } else {
      news.partial.push_back({entry.number, std::move(entry.by_number)});
    }
    entry.by_number = {};
  }
  for (Variant& variant : entry.in_full) news.requests.push_back(std::move(variant));
  entry.in_full.clear();
  entry.held = entry.going = false;
}

/// Whether everything that is held is sent now, because a rank waits for it or it has been held long enough.
bool Aggregator::all_goes(std::int64_t now_ns) const {
  if (!joins_.empty() || left_schedule_ != 0 || now_ns >= hold_ends_ns()) return true;
  if (leaving_.empty()) return false;
  return left_.contains(0) || leaving_.count() == below_.count() - left_.intersection(below_).count();
}

/// Whether the news that a caller has begun to wait is sent alone: only when no held news will carry it soon.
bool Aggregator::wait_goes() const noexcept {
  return !sent_waiting_ && held_.empty() && !entries_.empty() && anyone_waits();
}

bool Aggregator::anyone_waits() const noexcept {
  return std::any_of(children_.begin(), children_.end(), [](const auto& child) { return child.second.waiting; });
}

std::int64_t Aggregator::hold_ends_ns() const noexcept {
  std::int64_t since_ns = kNever;
  if (!held_.empty()) since_ns = held_.front()->second.held_since_ns;
  if (!leaving_.empty()) since_ns = std::min(since_ns, leaving_since_ns_);
  return since_ns == kNever ? kNever : since_ns + kHoldNs;
}

std::int64_t Aggregator::next_wake_ns() const noexcept {
  if (some_go_ || wait_goes()) return 0;
  const std::int64_t end_ns = hold_ends_ns();
  return all_goes(end_ns == kNever ? 0 : end_ns - 1) ? 0 : end_ns;
}

/// Takes the acknowledgements of those below on, unless a number is held that they would let the coordinator forget.
void Aggregator::acknowledge() {
  for (const Entries::value_type* item : held_) {
    if (!item->second.by_number.empty()) return;
  }
  acknowledged_ = std::max(acknowledged_, acknowledged_below());
  for (; !evicted_.empty() && evicted_.front().first <= acknowledged_; evicted_.pop_front()) {
    numbers_.erase(evicted_.front().second);
  }
  for (; !failures_.empty() && failures_.front().first <= acknowledged_; failures_.pop_front()) {
    const auto failed = failed_.find(failures_.front().second);
    if (failed != failed_.end() && failed->second == failures_.front().first) failed_.erase(failed);
  }
}

std::uint64_t Aggregator::acknowledged_below() const {
  std::uint64_t by_all = seen_;  // this rank gets decisions together with its worker
  for (const auto& [rank, child] : children_) {
    if (rank != rank_ && !left_.includes(child.ranks)) by_all = std::min(by_all, child.acknowledged);
  }
  return by_all;
}

bool Aggregator::free_to_go() const noexcept {
  // Rank 0 decides nothing any more after its own departure, but still counts who has left.
  return left_.includes(below_) || (left_.contains(0) && sent_leaving_.includes(below_.without(left_)));
}

void Aggregator::validate_state() const {
  std::size_t held = 0;
  for (const auto& [key, entry] : entries_) {
    held += entry.held ? 1 : 0;
    RINGTUNE_CHECK(below_.includes(entry.announced_by), "'", key.name, "' was submitted by ranks that are not below");
    RINGTUNE_CHECK(entry.held || (entry.by_number.empty() && entry.in_full.empty()), "'", key.name, "' is lost");
    RINGTUNE_CHECK(entry.by_number.empty() || numbers_.contains(entry.number), "'", key.name, "' has no number");
  }
  RINGTUNE_CHECK_EQ(held, held_.size());
  RINGTUNE_CHECK(!some_go_ || !held_.empty());
}

}  // namespace ringtune
