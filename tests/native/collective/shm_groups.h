// ShmGroups whose members are threads of a test.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collective/shared_allreduce.h"
#include "collective/shm_bootstrap.h"
#include "numbers.h"
#include "ranks.h"

namespace ringtune::testing_support {

inline constexpr std::int64_t kWaitNs = 20'000'000'000;

inline Group ring_of(Fabric& fabric) {
  Group group{.rank = fabric.rank(), .size = fabric.size(), .waker = &fabric.waker(), .idle_timeout_ns = kWaitNs};
  for (int edge = 0; edge < group.size && group.size > 1; ++edge) {
    const std::string channel = "edge/" + std::to_string(edge);
    const Deadline deadline = Deadline::after(kWaitNs);
    if (edge == group.rank) group.next = &fabric.connect((edge + 1) % group.size, channel, deadline);
    if ((edge + 1) % group.size == group.rank) group.prev = &fabric.connect(edge, channel, deadline);
  }
  return group;
}

inline ShmGroupOptions options_of(std::size_t slot_bytes, std::size_t slots) {
  ShmGroupOptions options;
  options.slot_bytes = slot_bytes;
  options.slots = slots;
  options.idle_timeout_ns = kWaitNs;
  return options;
}

/// A thread for each member, with its shared-memory group and fabric.
inline void run_shm_group(int members, const ShmGroupOptions& options,
                          const std::function<void(ShmGroup&, Fabric&)>& body) {
  const std::vector<std::unique_ptr<Fabric>> fabrics = make_inproc_fabrics(members, 64 << 10);
  std::vector<int> ranks;
  for (int rank = 0; rank < members; ++rank) ranks.push_back(rank);
  on_threads(members, [&](int rank) {
    Fabric& fabric = *fabrics[static_cast<std::size_t>(rank)];
    const std::shared_ptr<ShmGroup> shm_group = connect_shm_group(fabric, ring_of(fabric), ranks, options);
    ASSERT_NE(shm_group, nullptr);
    body(*shm_group, fabric);
  });
}

inline void expect_reduced(ShmGroup& shm_group, std::size_t count, DType dtype, ReduceOp op, std::uint64_t token) {
  Buffer data = input_of(shm_group.position(), count, dtype, op);
  const Fragment fragment{data.data(), data.data(), count};
  ASSERT_TRUE(shared_allreduce(shm_group, {&fragment, 1}, {token, dtype, op}));
  EXPECT_TRUE(data == reduced_of(shm_group.size(), count, dtype, op)) << count << " elements";
}

}  // namespace ringtune::testing_support
