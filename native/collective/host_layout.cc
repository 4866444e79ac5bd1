#include "collective/host_layout.h"

#include <algorithm>
#include <map>

#include "base/check.h"

namespace ringtune {

HostLayout layout_of(const std::vector<std::string>& hosts, int position) {
  RINGTUNE_CHECK(position >= 0 && position < static_cast<int>(hosts.size()), "position ", position);
  HostLayout layout;
  std::map<std::string, std::vector<int>> members;
  for (int member = 0; member < static_cast<int>(hosts.size()); ++member) {
    std::vector<int>& on_host = members[hosts[static_cast<std::size_t>(member)]];
    if (on_host.empty()) layout.leaders.push_back(member);
    on_host.push_back(member);
  }
  layout.local = members[hosts[static_cast<std::size_t>(position)]];
  layout.homogeneous = std::all_of(members.begin(), members.end(),
                                   [&](const auto& entry) { return entry.second.size() == layout.local.size(); });
  layout.levels = layout.hosts() > 1 && layout.leaders.size() < hosts.size();
  if (layout.homogeneous) {
    const auto place = std::find(layout.local.begin(), layout.local.end(), position) - layout.local.begin();
    for (const int leader : layout.leaders) {
      layout.cross.push_back(members[hosts[static_cast<std::size_t>(leader)]][static_cast<std::size_t>(place)]);
    }
  }
  return layout;
}

}  // namespace ringtune
