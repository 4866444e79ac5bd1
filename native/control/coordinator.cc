// PeerInfos in, tensors complete; what becomes of them stands in coordinator_decide.cc.
#include "control/coordinator.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace ringtune {
namespace {

/// The first dimension that each member of the set sent.
std::vector<std::int64_t> rows_of(const std::vector<Variant>& variants, const RankSet& members) {
  if (variants.front().request->kind != CollectiveKind::kAllgather) return {};
  std::vector<std::int64_t> rows(static_cast<std::size_t>(members.count()));
  for (const Variant& variant : variants) {
    const std::vector<std::int64_t>& shape = variant.request->shape;
    for (const int rank : variant.ranks.ranks()) {
      rows[static_cast<std::size_t>(members.position(rank))] = shape.empty() ? 1 : shape.front();
    }
  }
  return rows;
}

/// Error of tensors whose ranks have to do without the data path that some of them would take.
FailureKind failure_without(DataPath data_path) noexcept {
  switch (data_path) {
    case DataPath::kNccl:
      return FailureKind::kNotByNccl;
    case DataPath::kNcclPacked:
      return FailureKind::kNotPacked;
    case DataPath::kRing:
      return FailureKind::kNotByRing;
    default:
      return FailureKind::kNotWithinHosts;
  }
}

std::string unknown_set(std::uint32_t id) {
  return "process set " + std::to_string(id) + " is not registered any more: it was removed before this was agreed on";
}

}  // namespace

Coordinator::Coordinator(const CoordinatorOptions& options)
    : size_(options.size),
      knobs_(options.knobs),
      stall_(options.stall),
      hosts_(options.hosts),
      sets_(options.size),
      schedules_(options.schedules) {
  children_[0].ranks = RankSet::one(0);
  for (const TreeChild& child : tree_place(0, size_, options.fan_out).children) {
    children_[child.rank].ranks = child.ranks;
  }
  // The ranks may have been started with different settings: rank 0's hold, from the first decision on.
  items_.push_back(KnobsDecision{knobs_version_, knobs_});
}

void Coordinator::announced(int from, const WorkerNews& message, std::int64_t now_ns) {
  const auto found = children_.find(from);
  if (found == children_.end()) throw Protocol("rank " + std::to_string(from) + " is no child of rank 0 in the tree");
  Child& child = found->second;
  note_steps(message.steps);
  child.waiting = message.waiting;
  // Reported before the ranks saw the schedule: there it was taken over into the schedule, or is reported again after
  // it.
  if (message.seen >= schedule_sequence_) take_over(from, child, message, now_ns);
  child.acknowledged = std::max(child.acknowledged, message.acknowledged);  // after its numbers have been understood
  drop_evicted();
}

void Coordinator::take_over(int from, const Child& child, const WorkerNews& message, std::int64_t now_ns) {
  if (message.left_schedule != 0) schedule_left(message.left_schedule, message.schedule_rounds);
  for (const std::uint32_t id : message.cached) add_numbered(from, id, nullptr, now_ns);
  for (const PartialNews& news : message.partial) add_numbered(from, news.cache_id, &news.ranks, now_ns);
  for (const Variant& variant : message.requests) add_in_full(from, variant, now_ns);
  if (!message.leaving.empty()) {
    const RankSet leavers = spoken_for(child, from, message.leaving).without(left_);
    if (!leavers.empty()) ranks_left(leavers, message.departures, now_ns);
  }
}

/// Forgets the evicted numbers that no rank can use any more.
void Coordinator::drop_evicted() {
  if (!cache_.has_evicted()) return;
  std::uint64_t by_all = std::numeric_limits<std::uint64_t>::max();
  for (const auto& [rank, child] : children_) {
    if (!left_.includes(child.ranks)) by_all = std::min(by_all, child.acknowledged);
  }
  cache_.drop_evicted(by_all);
}

/// Throws Protocol unless `from` may speak for these ranks.
RankSet Coordinator::spoken_for(const Child& child, int from, const RankSet& ranks) const {
  if (ranks.empty() || !child.ranks.includes(ranks)) {
    throw Protocol("rank " + std::to_string(from) + " spoke for ranks " + rank_list(ranks.ranks()) +
                   ", which are not below it");
  }
  return ranks;
}

void Coordinator::add_numbered(int from, std::uint32_t id, const RankSet* some, std::int64_t now_ns) {
  ResponseCache::Slot* slot = cache_.find(id);
  if (slot == nullptr) {
    throw Protocol("rank " + std::to_string(from) + " submitted the unknown cache number " + std::to_string(id));
  }
  const SharedRequest request = slot->variants.front().request;
  if (slot->set_removed) return doom(*request, FailureKind::kInvalidArgument, unknown_set(request->process_set));
  const Child& child = children_.at(from);
  const RankSet ranks =
      some != nullptr ? spoken_for(child, from, *some) : child.ranks.intersection(*sets_.members(request->process_set));
  if (ranks.empty() || !slot->ranks.includes(ranks)) {
    throw Protocol("rank " + std::to_string(from) + " submitted the cache number " + std::to_string(id) +
                   " for ranks that have never been told it");
  }
  Entry& entry = count_in(request, ranks, now_ns);
  if (slot->evicted_in == 0) {
    entry.by_number.insert(ranks);
  } else {  // it will be forgotten, perhaps before the tensor is complete
    expand(*slot, ranks, entry.variants);
  }
  settle(slot->key, now_ns);
}

/// What a number means, from each of these ranks.
void Coordinator::expand(const ResponseCache::Slot& slot, const RankSet& ranks, std::vector<Variant>& variants) {
  for (const Variant& variant : slot.variants) {
    const RankSet common = variant.ranks.intersection(ranks);
    if (!common.empty()) add_variant(variants, variant.request, common);
  }
}

void Coordinator::add_in_full(int from, const Variant& variant, std::int64_t now_ns) {
  const Request& request = *variant.request;
  const RankSet ranks = spoken_for(children_.at(from), from, variant.ranks);
  if (request.kind == CollectiveKind::kJoin) return join(ranks, request, now_ns);
  const RankSet* members = sets_.members(request.process_set);
  if (members == nullptr) {  // it was removed while this was on its way
    return doom(request, FailureKind::kInvalidArgument, unknown_set(request.process_set));
  }
  if (!members->includes(ranks)) {
    throw Protocol("tensor '" + request.name + "' was submitted by ranks " +
                   rank_list(ranks.without(*members).ranks()) + ", which are not in process set " +
                   std::to_string(request.process_set));
  }
  add_variant(count_in(variant.request, ranks, now_ns).variants, variant.request, ranks);
  settle(key_of(request), now_ns);
}

Coordinator::Entry& Coordinator::count_in(const SharedRequest& request, const RankSet& ranks, std::int64_t now_ns) {
  const auto [it, fresh] = entries_.try_emplace(key_of(*request));
  Entry& entry = it->second;
  if (fresh) {
    entry.first = request;
    entry.first_ns = entry.warned_ns = now_ns;
    next_stall_ns_ = std::min(next_stall_ns_, stall_.first_look_ns(*request, now_ns));
  }
  if (entry.announced.intersects(ranks)) {
    throw Protocol("rank " + std::to_string(entry.announced.intersection(ranks).first()) + " submitted tensor '" +
                   request->name + "' twice");
  }
  entry.announced.insert(ranks);
  return entry;
}

/// Whether a tensor is complete, or can never be.
void Coordinator::settle(const TensorKey& key, std::int64_t now_ns) {
  const auto it = entries_.find(key);
  if (it == entries_.end()) return;
  const Entry& entry = it->second;
  const RankSet& members = *sets_.members(key.process_set);
  RankSet absent;
  if (entry.announced.count() < members.count()) {
    if (left_.empty() && joined_.empty()) return;
    const RankSet missing = members.without(entry.announced);
    absent = missing.intersection(joined_);
    if (hopeless(key, entry, absent)) {
      entries_.erase(it);
      return;
    }
    if (absent.count() < missing.count()) return;
  }
  Ready ready{entry.first, cache_.id_of(key), {}, std::move(absent), now_ns};
  complete(std::move(ready), std::move(entries_.extract(it).mapped()));
}

/// Fails a tensor that needs a rank which has left, or which has joined and cannot be replaced by neutral elements.
bool Coordinator::hopeless(const TensorKey& key, const Entry& entry, const RankSet& absent) {
  const Request& request = *entry.first;
  if (left_.intersects(*sets_.members(key.process_set))) {
    doom(request, FailureKind::kShutDown, leavers_message(request));
    return true;
  }
  const bool global = key.process_set == ProcessSets::kGlobal;
  if (absent.empty() || (global && request.kind == CollectiveKind::kAllreduce)) return false;
  const bool several = absent.count() > 1;
  doom(request, FailureKind::kMismatch,
       std::string(name_of(request.kind)) + (global ? "" : " in a process set") +
           " is not supported with Join at this time: tensor '" + request.name + "' needs rank" +
           (several ? "s " : " ") + rank_list(absent.ranks()) + ", which " + (several ? "have" : "has") +
           " joined. After join() only allreduce of the global process set goes on.");
  return true;
}

void Coordinator::complete(Ready ready, Entry entry) {
  const bool known = ready.cache_id != ResponseCache::kNone;
  if (!ready.absent.empty() && ready.request->data_path != DataPath::kStaged) {
    return part(*ready.request, FailureKind::kStageOnce,
                "tensor '" + ready.request->name + "' needs ranks that have joined: " +
                    rank_list(ready.absent.ranks()) + ", which have nothing on a GPU to contribute");
  }
  if (known && entry.variants.empty()) {
    cache_.touch(*cache_.find(ready.cache_id));
    return enqueue(std::move(ready));
  }
  if (!entry.by_number.empty()) expand(*cache_.find(ready.cache_id), entry.by_number, entry.variants);
  if (known) evict(ready.cache_id);
  const auto uneven = find_uneven(entry.variants);
  if (uneven) {  // only those that have it dense must agree about it
    std::erase_if(entry.variants, [](const Variant& v) { return v.request->contribution != Contribution::kDense; });
  }
  if (const auto mismatch = find_mismatch(entry.variants)) {
    return fail(*ready.request, FailureKind::kMismatch, *mismatch);
  }
  if (uneven) {
    const bool sparse = uneven->contribution == Contribution::kSparse;
    return fail(*ready.request, sparse ? FailureKind::kSomeSparse : FailureKind::kSomeAbsent, uneven->message);
  }
  if (const auto parting = find_parting(entry.variants)) {
    return part(*ready.request, failure_without(parting->refused), parting->message);
  }
  if (ready.request->kind == CollectiveKind::kAddProcessSet ||
      ready.request->kind == CollectiveKind::kRemoveProcessSet) {
    return change_sets(*ready.request);
  }
  ready.rows = rows_of(entry.variants, *sets_.members(ready.request->process_set));
  ready.cache_id = number(ready, std::move(entry.variants));
  enqueue(std::move(ready));
}

void Coordinator::enqueue(Ready ready) {
  const std::uint32_t group_size = ready.request->group_size;
  if (group_size == 0) {
    ready_.push_back(std::move(ready));
    return;
  }
  const TensorKey name{ready.request->process_set, ready.request->group};
  Group& group = groups_[name];
  if (!group.failure.empty()) {
    fail(*ready.request, group.kind, group.failure);
    return;
  }
  group.members.push_back(std::move(ready));
  if (group.members.size() < group_size) return;
  std::move(group.members.begin(), group.members.end(), std::back_inserter(ready_));
  groups_.erase(name);
}

/// Has a tensor that all ranks have announced submitted again, to take another data path on all. Its group waits for
/// that.
void Coordinator::part(const Request& request, FailureKind kind, const std::string& message) {
  items_.push_back(FailureDecision{kind, request.name, message, request.process_set});
  learner_.disturbed();
}

/// Fails a tensor that all have reported, and with it what waits in its group: half a group must not hang or run.
void Coordinator::fail(const Request& request, FailureKind kind, const std::string& message) {
  items_.push_back(FailureDecision{kind, request.name, message, request.process_set});
  learner_.disturbed();
  if (request.group_size == 0) return;
  const TensorKey name{request.process_set, request.group};
  Group& group = groups_[name];
  if (group.failure.empty()) {
    group.failure = "another member of its group failed: " + message;
    group.kind = kind == FailureKind::kSomeSparse ? FailureKind::kSomeAbsent : kind;  // it alone is to go as rows
  }
  fail_members(group, group.kind, group.failure);
  group.failed += 1 + static_cast<std::uint32_t>(group.members.size());
  group.members.clear();
  if (group.failed >= request.group_size) groups_.erase(name);
}

/// Fails a tensor that some ranks have not announced, and what waits for it. Those ranks get the failure when they
/// announce it, so nothing is remembered.
void Coordinator::doom(const Request& request, FailureKind kind, const std::string& message) {
  items_.push_back(FailureDecision{kind, request.name, message, request.process_set});
  learner_.disturbed();
  const auto group = groups_.find({request.process_set, request.group});
  if (request.group_size == 0 || group == groups_.end()) return;
  fail_members(group->second, kind, "another member of its group failed: " + message);
  groups_.erase(group);
}

void Coordinator::fail_members(const Group& group, FailureKind kind, const std::string& message) {
  for (const Ready& member : group.members) {
    items_.push_back(FailureDecision{kind, member.request->name, message, member.request->process_set});
  }
}

}  // namespace ringtune
