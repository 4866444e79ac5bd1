// Who is in which process set, as the coordinator decides it and the stream of decisions tells every rank.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>

#include "control/rank_set.h"

namespace ringtune {

class ProcessSets {
 public:
  static constexpr std::uint32_t kGlobal = 0;

  explicit ProcessSets(int size) { members_[kGlobal] = RankSet::range(0, size); }

  /// Null when there is no such set.
  [[nodiscard]] const RankSet* members(std::uint32_t id) const noexcept {
    const auto found = members_.find(id);
    return found == members_.end() ? nullptr : &found->second;
  }
  /// Whether there is another one than that of all ranks.
  [[nodiscard]] bool several() const noexcept { return members_.size() > 1; }
  [[nodiscard]] std::optional<std::uint32_t> find(const RankSet& members) const;
  /// Registers a set under the number of the set that was removed longest ago, else under the next one.
  std::uint32_t add(const RankSet& members);
  /// Registers a set under the number that the coordinator has given it.
  void put(std::uint32_t id, const RankSet& members) { members_.insert_or_assign(id, members); }
  void remove(std::uint32_t id);

 private:
  std::map<std::uint32_t, RankSet> members_;
  std::deque<std::uint32_t> free_;
  std::uint32_t next_ = 1;
};

}  // namespace ringtune
