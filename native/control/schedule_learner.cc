#include "control/schedule_learner.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"
#include "control/tensor_key.h"
#include "fusion/plan.h"

namespace ringtune {
namespace {

constexpr int kMostFailures = 6;       // the rounds wanted double with each: 3 << 6 = 192
constexpr std::uint64_t kLasting = 4;  // rounds after which a schedule has served
constexpr std::size_t kRecordsKept = 1024;
constexpr int kGapFactor = 2;  // of the cycle time: ready requests come in bundles of one cycle time

/// Spreads numbers, so that the sum over a set names it.
constexpr std::uint64_t mixed(std::uint64_t value) noexcept {
  value += 0x9e3779b97f4a7c15ull;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

/// Whether a batch must not reach from `a` to the tensor after it.
bool cut_between(const Decided& a, const Decided& b, bool apart, const Knobs& knobs) noexcept {
  if (a.sequence == b.sequence) return false;
  return apart || a.awaited || b.ready_ns - a.ready_ns > kGapFactor * knobs.cycle_time_ns;
}

}  // namespace

void ScheduleLearner::disturbed() {
  present_.clear();
  present_ids_.clear();
  sum_ = 0;
  shared_ = 0;
  equal_ = 0;
  last_ids_.clear();
  torn_ = false;
}

void ScheduleLearner::reset() {
  disturbed();
  records_.clear();
  scheduled_.clear();
}

/// Whether the tensor lies between a schedule that has ended and its next begin.
bool ScheduleLearner::comes_between(std::uint32_t cache_id, std::size_t most) {
  if (scheduled_.empty() || !present_.empty() || scheduled_.count(cache_id) > 0) return false;
  if (came_between_.size() < most && came_between_.insert(cache_id).second) return true;
  scheduled_.clear();  // something else repeats itself
  return false;
}

bool ScheduleLearner::matches_last() const noexcept {
  return shared_ == present_.size() && present_.size() == last_ids_.size();
}

void ScheduleLearner::close_round() {
  equal_ = matches_last() ? equal_ + 1 : 1;
  last_ids_ = std::move(present_ids_);
  present_ids_ = {};
  present_.clear();
  sum_ = 0;
  shared_ = 0;
}

std::optional<std::vector<std::vector<std::uint32_t>>> ScheduleLearner::decided(const Decided& tensor,
                                                                                const Knobs& knobs, bool last) {
  const bool first = std::exchange(first_, last);
  if (tensor.cache_id == 0) {
    disturbed();
    return std::nullopt;
  }
  if (comes_between(tensor.cache_id, knobs.cache_capacity)) return std::nullopt;
  // The cache does not hold the numbers of a longer round: names that count the steps never come again.
  if (present_.size() >= knobs.cache_capacity) disturbed();
  if (present_ids_.count(tensor.cache_id) > 0) {
    close_round();
    torn_ = torn_ || !first;
  }
  present_.push_back(tensor);
  present_ids_.insert(tensor.cache_id);
  sum_ += mixed(tensor.cache_id);
  shared_ += last_ids_.count(tensor.cache_id);
  if (!last) return std::nullopt;
  const bool torn = std::exchange(torn_, false);
  const auto record = records_.find(key());
  const bool known = record != records_.end();
  const bool trusted = known && record->second.served && record->second.failures == 0;
  if (!trusted && !matches_last()) {
    if (torn) disturbed();  // begin anew with what is decided next
    return std::nullopt;
  }
  const int wanted = trusted ? 1 : kRounds << (known ? record->second.failures : 0);
  const int seen = matches_last() ? equal_ + 1 : 1;
  auto schedule = seen >= wanted ? build(knobs) : std::nullopt;
  if (schedule) {
    active_ = key();
    scheduled_ = present_ids_;
    came_between_.clear();
  }
  close_round();
  return schedule;
}

std::optional<std::vector<std::vector<std::uint32_t>>> ScheduleLearner::build(const Knobs& knobs) {
  if (records_.size() >= kRecordsKept) records_.clear();
  const bool apart = records_[key()].apart;
  std::vector<std::vector<std::uint32_t>> batches;
  std::map<TensorKey, std::size_t> group_batch;
  for (std::size_t begin = 0; begin < present_.size();) {
    std::size_t end = begin + 1;
    while (end < present_.size() && !cut_between(present_[end - 1], present_[end], apart, knobs)) ++end;
    std::vector<ReadyTensor> tensors;
    for (std::size_t i = begin; i < end; ++i) {
      const Request& request = *present_[i].request;
      tensors.push_back({request.kind, request.dtype, request.op, wire_byte_count(request), request.group,
                         request.process_set, wire_dtype(request), request.place,
                         static_cast<std::uint8_t>(request.data_path)});
    }
    for (const std::vector<std::uint32_t>& members : plan(tensors, knobs.fusion_bytes)) {
      std::vector<std::uint32_t>& batch = batches.emplace_back();
      for (const std::uint32_t index : members) {
        const Decided& tensor = present_[begin + index];
        batch.push_back(tensor.cache_id);
        const Request& request = *tensor.request;
        if (request.group_size == 0) continue;
        // Members of a group run only when all are ready: a group that needs two batches has no place in a schedule.
        if (group_batch.emplace(TensorKey{request.process_set, request.group}, batches.size()).first->second !=
            batches.size()) {
          return {};
        }
      }
    }
    begin = end;
  }
  return batches;
}

void ScheduleLearner::ended(std::uint64_t rounds, std::size_t batches) {
  Record& record = records_[active_];
  if (rounds >= kLasting * batches) {
    record.failures = 0;
    record.served = true;
  } else {
    record.failures = std::min(record.failures + 1, kMostFailures);
    record.apart = true;
    scheduled_.clear();
  }
  disturbed();
}

void ScheduleLearner::outgrown() {
  records_.erase(active_);
  scheduled_.clear();
  disturbed();
}

}  // namespace ringtune
