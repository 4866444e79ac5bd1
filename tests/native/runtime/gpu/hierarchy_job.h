// Ranks of one process on several hosts, by name, where NCCL is to go within hosts.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "nccl_job.h"
#include "transport/fabrics.h"

namespace ringtune::testing_support {

/// What the fabrics borrow: it goes after them.
struct OnHosts {
  explicit OnHosts(const std::vector<std::string>& hosts) : joined(ringtune::testing_support::join_hosts(hosts)) {}
  ringtune::testing_support::Joined joined;
};

class HierarchyJob : private OnHosts, public NcclJob {
 public:
  /// `gpus`: of the ranks, in turn; 0: one for each.
  explicit HierarchyJob(const std::vector<std::string>& hosts, const std::function<void(RuntimeOptions&)>& adjust = {},
                        int gpus = 0)
      : OnHosts(hosts),
        NcclJob(std::move(joined.fabrics), gpus > 0 ? gpus : static_cast<int>(hosts.size()),
                [&](RuntimeOptions& options) {
                  options.gpu_data_path = GpuDataPath::kNcclHost;
                  options.connect_timeout_ns = 20'000'000'000;
                  if (adjust) adjust(options);
                }) {}
};

/// Where no network of NCCL's leads from host to host: its connection of all members fails on all of them.
inline void part_hosts(int ranks) {
  for (int call = 0; call < ranks; ++call) FakeNccl::fail("ncclCommInitRankConfig", call, 2);
}

inline const std::vector<std::string> kTwoByTwo = {"a", "a", "b", "b"};

}  // namespace ringtune::testing_support
