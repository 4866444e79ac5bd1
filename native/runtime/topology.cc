#include <algorithm>
#include <map>

#include "runtime/runtime.h"

namespace ringtune {

Topology topology_of(const std::vector<std::string>& hosts, int rank) {
  std::vector<std::string> order;     // hosts by their first rank
  std::map<std::string, int> counts;  // ranks on each
  Topology topology;
  for (int r = 0; r < static_cast<int>(hosts.size()); ++r) {
    const std::string& host = hosts[static_cast<std::size_t>(r)];
    if (r == rank) topology.local_rank = counts[host];
    if (counts[host]++ == 0) order.push_back(host);
  }
  const std::string& mine = hosts[static_cast<std::size_t>(rank)];
  topology.local_size = counts[mine];
  topology.cross_size = 0;
  for (const std::string& host : order) {
    if (counts[host] <= topology.local_rank) continue;  // Horovod: over the hosts that have this local rank
    if (host == mine) topology.cross_rank = topology.cross_size;
    ++topology.cross_size;
  }
  topology.homogeneous =
      std::all_of(counts.begin(), counts.end(), [&](const auto& entry) { return entry.second == topology.local_size; });
  return topology;
}

}  // namespace ringtune
