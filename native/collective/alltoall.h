// Alltoall with counts of every member's own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collective/mesh.h"

namespace ringtune {

/// Tells every member how many rows it will get from this one; returns how many come from each. Blocks; throws as
/// exchange().
[[nodiscard]] std::vector<std::int64_t> exchange_counts(Mesh& mesh, std::span<const std::int64_t> counts);

/// `input` holds the blocks for all members in order, `send_bytes[p]` each (what follows them is not sent); `output` is
/// filled with the blocks of all members in order, `receive_bytes[p]` each. Both sides know the sizes. The two do not
/// overlap. Blocks; throws as exchange().
void alltoall(Mesh& mesh, std::span<const std::byte> input, std::span<const std::size_t> send_bytes,
              std::span<std::byte> output, std::span<const std::size_t> receive_bytes);

}  // namespace ringtune
