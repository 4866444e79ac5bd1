// Carries out a schedule over the links of a mesh.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "base/dtype.h"
#include "collective/mesh.h"
#include "collective/schedules.h"

namespace ringtune {

struct ScheduleJob {
  std::string_view what;  // "recursive-doubling allreduce", for messages
  DType dtype = DType::kUint8;
  ReduceOp op = ReduceOp::kSum;
};

/// Every rank of the mesh runs its own schedule of the same algorithm over equally many bytes; in place. Received bytes
/// are reduced out of the link's buffer or received straight to their place. Blocks; throws PeerLost, Timeout (no byte
/// moved for the mesh's idle timeout), what Mesh::prepare throws.
void run_schedule(Mesh& mesh, std::span<std::byte> data, const Schedule& schedule, const ScheduleJob& job);

}  // namespace ringtune
