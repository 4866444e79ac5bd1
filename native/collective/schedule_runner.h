// Carries out a schedule over the links of a mesh.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "base/dtype.h"
#include "collective/activity.h"
#include "collective/agreement_header.h"
#include "collective/mesh.h"
#include "collective/schedules.h"

namespace ringtune {

struct ScheduleJob {
  std::string_view what;  // "recursive-doubling allreduce", for messages
  DType dtype = DType::kUint8;
  ReduceOp op = ReduceOp::kSum;
  // Borrowed; stands in front of every message, also of an empty one. Null: there is none.
  AgreementHeader* agreement = nullptr;
};

/// Every rank of the mesh runs its own schedule of the same algorithm over equally many bytes, in place. Received bytes
/// are reduced out of the link's buffer or received straight to their place. Connects missing links; blocks and throws
/// as Mesh::prepare.
[[nodiscard]] ActivityPtr start_schedule(Mesh& mesh, std::span<std::byte> data, Schedule schedule,
                                         const ScheduleJob& job);

}  // namespace ringtune
