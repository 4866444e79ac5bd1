// How the members of a group come to share an arena.
#pragma once

#include <memory>
#include <vector>

#include "collective/group.h"
#include "transport/arena.h"
#include "transport/fabric.h"

namespace ringtune {

/// Makes the arena of a group; every member calls it at the same place. Null, for all members alike, when any two of
/// them do not share memory. The arena is aborted with the fabric's links. Blocks; throws what the ring throws.
/// `ranks`: of the members, by position.
[[nodiscard]] std::shared_ptr<Arena> connect_arena(Fabric& fabric, const Group& ring, const std::vector<int>& ranks,
                                                   ArenaOptions options);

/// Slots that stay in the second-level cache, less than 64 MiB for each member, and waits as the members' cores allow.
[[nodiscard]] ArenaOptions default_arena();

}  // namespace ringtune
