// Allreduce through shared memory: copy in, reduction and copy out in one pass over the tensors.
//
// The tensors of a batch (*fragments*) are walked as one stream, cut into pieces of a slot. Every member packs a piece
// into its slot, which stays in its second-level cache, and the next one ahead; then
//   two members, or a small batch:   each reduces the whole piece out of all slots into its outputs;
//   otherwise:                       each reduces its part of the piece out of all slots into its own slot, and copies
//                                    the other parts from theirs;
//   two whose slots are returned:    each packs the other's half alone, reduces its own into its outputs and into the
//                                    slot that the other half of the data came in, and copies the rest from its own.
// Sums are formed in the order of the members, element by element: results are bitwise equal on all members, whatever
// the size of the pieces. Tensors may lie in the slots as a 16-bit dtype: they are cast while they are packed, summed
// in float32 and, where every member reduces everything, not rounded to 16 bits again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/dtype.h"
#include "collective/shm_round.h"

namespace ringtune {

/// One tensor. Addresses are borrowed; input and output are the same or do not overlap.
struct Fragment {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::size_t count = 0;  // elements
  double prescale = 1.0;
  double postscale = 1.0;
};

struct SharedRound {
  std::uint64_t token = 0;  // identifies the round for this member; any value but ShmGroup::kDeclined
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::optional<DType> wire = {};  // in the slots: float16 or bfloat16 for another floating dtype; empty = as it is
};

/// Posts a round (ShmRound). `fragments` stay alive until it is over.
[[nodiscard]] std::unique_ptr<ShmRound> post_allreduce(ShmGroup& shm_group, std::span<const Fragment> fragments,
                                                       const SharedRound& round);

/// One round. False, with no output written, when a member declined it or came with another token: then it is false
/// for every member. Blocks; throws PeerLost, Timeout.
[[nodiscard]] bool shared_allreduce(ShmGroup& shm_group, std::span<const Fragment> fragments, const SharedRound& round);

}  // namespace ringtune
