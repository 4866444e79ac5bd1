#include "control/response_cache.h"

#include <utility>

#include "base/check.h"

namespace ringtune {

ResponseCache::Slot* ResponseCache::find(std::uint32_t id) noexcept {
  const auto found = slots_.find(id);
  return found == slots_.end() ? nullptr : &found->second;
}

std::uint32_t ResponseCache::id_of(const TensorKey& key) const {
  const auto found = ids_.find(key);
  return found == ids_.end() ? kNone : found->second;
}

std::uint32_t ResponseCache::add(Slot slot) {
  const std::uint32_t id = next_id_++;
  slot.use = least_used_.insert(least_used_.end(), id);
  for (const Variant& variant : slot.variants) slot.ranks.insert(variant.ranks);
  ids_[slot.key] = id;
  slots_.emplace(id, std::move(slot));
  return id;
}

void ResponseCache::evict(std::uint32_t id, std::uint64_t sequence) {
  Slot& slot = slots_.at(id);
  slot.evicted_in = sequence;
  least_used_.erase(slot.use);
  ids_.erase(slot.key);
  evicted_.push_back(id);
}

std::vector<std::uint32_t> ResponseCache::surplus(std::size_t capacity,
                                                  const std::function<bool(const TensorKey&)>& keep) const {
  std::vector<std::uint32_t> list;
  for (auto it = least_used_.begin(); it != least_used_.end() && least_used_.size() - list.size() > capacity; ++it) {
    if (!keep(slots_.at(*it).key)) list.push_back(*it);
  }
  return list;
}

std::vector<std::uint32_t> ResponseCache::ids_of_set(std::uint32_t process_set) const {
  std::vector<std::uint32_t> list;
  for (const std::uint32_t id : least_used_) {
    if (slots_.at(id).key.process_set == process_set) list.push_back(id);
  }
  return list;
}

void ResponseCache::mark_set_removed(std::uint32_t process_set) {
  for (const std::uint32_t id : evicted_) {
    Slot& slot = slots_.at(id);
    slot.set_removed = slot.set_removed || slot.key.process_set == process_set;
  }
}

void ResponseCache::drop_evicted(std::uint64_t sequence) {
  std::erase_if(evicted_, [&](std::uint32_t id) {
    if (slots_.at(id).evicted_in > sequence) return false;
    slots_.erase(id);
    return true;
  });
}

void ResponseCache::validate_state() const {
  RINGTUNE_CHECK_EQ(least_used_.size(), ids_.size());
  RINGTUNE_CHECK_EQ(slots_.size(), least_used_.size() + evicted_.size());
  for (const auto& [key, id] : ids_) RINGTUNE_CHECK(slots_.at(id).key == key, "'", key.name, "'");
}

}  // namespace ringtune
