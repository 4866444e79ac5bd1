// How a group lies on hosts. Pure.
#pragma once

#include <string>
#include <vector>

namespace ringtune {

/// Positions in the group, ascending.
struct HostLayout {
  std::vector<int> local;    // members on this one's host, itself among them
  std::vector<int> cross;    // the members with the same place on their hosts; empty unless homogeneous
  std::vector<int> leaders;  // the first member on each host
  bool homogeneous = true;   // equally many members on every host
  [[nodiscard]] int hosts() const noexcept { return static_cast<int>(leaders.size()); }
  /// Several hosts, and on some of them several members.
  [[nodiscard]] bool has_levels() const noexcept { return levels; }
  bool levels = false;
};

/// `hosts`: name of each member's host. `position`: whose view.
[[nodiscard]] HostLayout layout_of(const std::vector<std::string>& hosts, int position);

}  // namespace ringtune
