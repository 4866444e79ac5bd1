// The ring as a table: pure functions, tested as such.
#pragma once

#include <cstddef>
#include <vector>

namespace ringtune {

struct ChunkRange {
  std::size_t begin;  // bytes
  std::size_t size;
  friend bool operator==(const ChunkRange&, const ChunkRange&) = default;
};

/// Cuts `bytes` into `parts` chunks at multiples of `element_bytes`, aligned to 64 bytes where the buffer allows; sizes
/// differ by as little as that permits; trailing chunks may be empty.
[[nodiscard]] std::vector<ChunkRange> cut_chunks(std::size_t bytes, std::size_t element_bytes, int parts);

enum class RingPhase { kReduceScatter, kAllgather };

/// What one rank does in step `step` (0 .. 2*(size-1) - 1) of a ring allreduce.
struct RingStep {
  RingPhase phase;
  int send_chunk;  // to next
  int recv_chunk;  // from prev; reduced into or copied over the own chunk by phase
  friend bool operator==(const RingStep&, const RingStep&) = default;
};
[[nodiscard]] std::vector<RingStep> ring_steps(int rank, int size);

}  // namespace ringtune
