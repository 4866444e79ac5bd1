// How the members of a group come to share a shared-memory group.
#pragma once

#include <memory>
#include <vector>

#include "collective/group.h"
#include "transport/fabric.h"
#include "transport/shm_group.h"

namespace ringtune {

/// Makes the shared-memory group of a group; every member calls it at the same place. Null, for all members alike, when
/// any two of them do not share memory. The shared-memory group is aborted with the fabric's links. Blocks; throws what
/// the ring throws. `ranks`: of the members, by position.
[[nodiscard]] std::shared_ptr<ShmGroup> connect_shm_group(Fabric& fabric, const Group& ring,
                                                          const std::vector<int>& ranks, ShmGroupOptions options);

/// Slots that stay in the second-level cache, less than 64 MiB for each member, and waits as the members' cores allow.
[[nodiscard]] ShmGroupOptions default_shm_group();

}  // namespace ringtune
