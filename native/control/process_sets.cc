#include "control/process_sets.h"

namespace ringtune {

std::optional<std::uint32_t> ProcessSets::find(const RankSet& members) const {
  for (const auto& [id, ranks] : members_) {
    if (ranks == members) return id;
  }
  return std::nullopt;
}

std::uint32_t ProcessSets::add(const RankSet& members) {
  std::uint32_t id = next_;
  if (free_.empty()) {
    ++next_;
  } else {
    id = free_.front();
    free_.pop_front();
  }
  put(id, members);
  return id;
}

void ProcessSets::remove(std::uint32_t id) {
  if (members_.erase(id) > 0) free_.push_back(id);
}

}  // namespace ringtune
