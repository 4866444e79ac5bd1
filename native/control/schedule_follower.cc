#include "control/schedule_follower.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace ringtune {

void ScheduleFollower::begin(std::uint32_t id, const std::vector<std::vector<SharedRequest>>& batches,
                             std::int64_t now_ns, std::vector<std::vector<std::int64_t>> rows) {
  RINGTUNE_CHECK(id != 0 && !active(), "schedule ", id);
  total_ = batches.size();
  rows.resize(total_);
  for (std::uint32_t number = 0; number < total_; ++number) {
    const std::vector<SharedRequest>& members = batches[number];
    if (members.empty()) continue;
    const auto begin = static_cast<std::uint32_t>(tensors_.size());
    for (const SharedRequest& request : members) {
      const auto index = static_cast<std::uint32_t>(tensors_.size());
      by_address_.emplace(request.get(), index);
      by_name_.emplace(std::pair(request->process_set, std::string_view(request->name)), index);
      tensors_.push_back({request, wire_byte_count(*request), static_cast<std::uint32_t>(batches_.size())});
    }
    const auto end = static_cast<std::uint32_t>(tensors_.size());
    batches_.push_back({begin, end, end - begin, number, std::move(rows[number])});
  }
  RINGTUNE_CHECK(!batches_.empty(), "schedule ", id, " without a batch of this rank");
  tags_.assign(tensors_.size(), 0);
  id_ = id;
  position_ = hint_ = pending_ = 0;
  pass_ = order_ = 0;
  progress_ns_ = now_ns;
}

ScheduleFollower::Tensor* ScheduleFollower::find(const SharedRequest& request) {
  if (hint_ < tensors_.size() && tensors_[hint_].request == request) return &tensors_[hint_];
  if (const auto known = by_address_.find(request.get()); known != by_address_.end()) return &tensors_[known->second];
  const auto named = by_name_.find({request->process_set, request->name});
  if (named == by_name_.end()) return nullptr;
  Tensor& tensor = tensors_[named->second];
  return *tensor.request == *request ? &tensor : nullptr;
}

bool ScheduleFollower::take(const SharedRequest& request, Tag tag, std::int64_t now_ns) {
  Tensor* const tensor = find(request);
  if (tensor == nullptr || tensor->ready) return false;
  const auto index = static_cast<std::size_t>(tensor - tensors_.data());
  tensor->ready = true;
  tensor->since_ns = now_ns;
  tensor->order = order_++;
  tags_[index] = tag;
  --batches_[tensor->batch].missing;
  ++pending_;
  hint_ = index + 1 < tensors_.size() ? index + 1 : 0;
  progress_ns_ = std::max(progress_ns_, now_ns);
  return true;
}

std::span<const Tag> ScheduleFollower::batch() const noexcept {
  const Batch& batch = batches_[position_];
  return {tags_.data() + batch.begin, batch.end - batch.begin};
}

std::vector<ScheduleFollower::Round> ScheduleFollower::next_rounds() const {
  std::vector<Round> rounds;
  for (std::size_t i = 0; i < batches_.size(); ++i) {
    const bool wraps = position_ + i >= batches_.size();
    const Batch& batch = batches_[position_ + i - (wraps ? batches_.size() : 0)];
    const std::uint32_t set = tensors_[batch.begin].request->process_set;
    const bool known = std::any_of(rounds.begin(), rounds.end(),
                                   [&](const Round& round) { return round.batch.front()->process_set == set; });
    if (known) continue;
    Round& round = rounds.emplace_back(Round{token_of(wraps ? pass_ + 1 : pass_, batch), {}});
    for (std::uint32_t tensor = batch.begin; tensor < batch.end; ++tensor) {
      round.batch.push_back(tensors_[tensor].request);
    }
  }
  return rounds;
}

void ScheduleFollower::ran(std::int64_t now_ns) noexcept {
  Batch& batch = batches_[position_];
  for (std::uint32_t i = batch.begin; i < batch.end; ++i) tensors_[i].ready = false;
  batch.missing = batch.end - batch.begin;
  pending_ -= batch.missing;
  if (++position_ == batches_.size()) {
    position_ = 0;
    ++pass_;
  }
  progress_ns_ = std::max(progress_ns_, now_ns);
}

std::size_t ScheduleFollower::room() const noexcept {
  const Batch& batch = batches_[position_];
  std::size_t bytes = 0;
  for (std::uint32_t i = batch.begin; i < batch.end; ++i) bytes += tensors_[i].ready ? 0 : tensors_[i].bytes;
  return bytes;
}

std::vector<ScheduleFollower::Leftover> ScheduleFollower::end() {
  std::vector<std::uint32_t> ready;
  for (std::uint32_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].ready) ready.push_back(i);
  }
  std::sort(ready.begin(), ready.end(),
            [&](std::uint32_t a, std::uint32_t b) { return tensors_[a].order < tensors_[b].order; });
  std::vector<Leftover> leftovers;
  leftovers.reserve(ready.size());
  for (const std::uint32_t i : ready) leftovers.push_back({tensors_[i].request, tags_[i], tensors_[i].since_ns});
  id_ = 0;
  batches_.clear();
  by_address_.clear();
  by_name_.clear();
  tensors_.clear();
  pending_ = 0;
  return leftovers;
}

void ScheduleFollower::validate_state() const {
  std::size_t ready = 0;
  for (const Batch& batch : batches_) {
    std::uint32_t missing = 0;
    for (std::uint32_t i = batch.begin; i < batch.end; ++i) {
      missing += tensors_[i].ready ? 0 : 1;
      ready += tensors_[i].ready ? 1 : 0;
    }
    RINGTUNE_CHECK_EQ(missing, batch.missing);
  }
  RINGTUNE_CHECK_EQ(ready, pending_);
}

}  // namespace ringtune
