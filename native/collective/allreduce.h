// Allreduce by any of the algorithms.
#pragma once

#include <cstddef>
#include <span>

#include "collective/activity.h"
#include "collective/collectives.h"
#include "collective/mesh.h"

namespace ringtune {

/// The two ways through a group; borrowed.
struct Paths {
  const Group* ring = nullptr;
  Mesh* mesh = nullptr;
};

/// To be advanced; `data` is not touched before that, but for a pipeline, which all but the ring ask for everything
/// here. Bitwise equal on all ranks. Ranks of a group name the same algorithm. Connects what is not connected: blocks,
/// and throws what Mesh::prepare throws. With an agreement header also empty data is sent round.
[[nodiscard]] ActivityPtr start_allreduce(const Paths& paths, const AllreduceJob& job);

/// The same from begin to end. Blocks; throws PeerLost, Timeout.
void allreduce(const Paths& paths, std::span<std::byte> data, DType dtype, ReduceOp op,
               const AllreduceOptions& options);

}  // namespace ringtune
