// Allreduce by any of the algorithms.
#pragma once

#include <cstddef>
#include <span>

#include "base/dtype.h"
#include "collective/algorithm.h"
#include "collective/collectives.h"
#include "collective/mesh.h"

namespace ringtune {

/// The two ways through a group; borrowed.
struct Paths {
  const Group* ring = nullptr;
  Mesh* mesh = nullptr;
};

struct AllreduceOptions {
  Algorithm algorithm = Algorithm::kRing;  // not kTable
  RingOptions ring = {};
};

/// In place, as ring_allreduce: bitwise equal on all ranks. Ranks of a group name the same algorithm. Blocks; throws
/// PeerLost, Timeout.
void allreduce(const Paths& paths, std::span<std::byte> data, DType dtype, ReduceOp op,
               const AllreduceOptions& options);

}  // namespace ringtune
