// Reduce-scatter: every member gets its part of the sum.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "collective/collectives.h"
#include "collective/ring_schedule.h"

namespace ringtune {

/// Rows of each of `parts` members: the first `rows % parts` get one more. Pure.
[[nodiscard]] std::vector<std::int64_t> cut_rows(std::int64_t rows, int parts);

/// What one member does in step k (0 .. size - 2): sends a chunk to next, reduces one from prev. Its own chunk comes
/// last. Pure.
[[nodiscard]] std::vector<RingStep> scatter_steps(int rank, int size);

/// `data` holds one chunk of `chunk_bytes[p]` for each member; afterwards the own chunk holds the reduction over all,
/// in ring order beginning after its owner, the others partial ones. `op` and dtypes as in ring_allreduce. Blocks;
/// throws PeerLost, Timeout.
void ring_reducescatter(const Group& group, std::span<std::byte> data, std::span<const std::size_t> chunk_bytes,
                        DType dtype, ReduceOp op, const RingOptions& options);

}  // namespace ringtune
