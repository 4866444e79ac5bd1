#include "collective/ring_schedule.h"

#include <numeric>

#include "base/check.h"

namespace ringtune {
namespace {

constexpr std::size_t kAlignment = 64;  // a cache line: neighbours' chunks share none

int wrap(int position, int size) { return ((position % size) + size) % size; }

}  // namespace

std::vector<ChunkRange> cut_chunks(std::size_t bytes, std::size_t element_bytes, int parts) {
  RINGTUNE_CHECK_GE(parts, 1);
  RINGTUNE_CHECK_GE(element_bytes, std::size_t{1});
  RINGTUNE_CHECK_EQ(bytes % element_bytes, std::size_t{0}, "buffer of ", bytes, " bytes, elements of ", element_bytes);
  const auto count = static_cast<std::size_t>(parts);
  const std::size_t aligned = std::lcm(element_bytes, kAlignment);
  // Too small to give everybody an aligned piece: cut at elements, so that all ranks still take part.
  const std::size_t unit = bytes >= aligned * count ? aligned : element_bytes;
  const std::size_t units = bytes / unit;
  std::vector<ChunkRange> chunks(count);
  std::size_t begin = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t size = (units / count + (i < units % count ? 1 : 0)) * unit;
    chunks[i] = {begin, size};
    begin += size;
  }
  chunks.back().size += bytes - begin;  // the last one is never among those that got a unit more
  return chunks;
}

std::vector<RingStep> ring_steps(int rank, int size) {
  RINGTUNE_CHECK_GE(size, 1);
  RINGTUNE_CHECK(rank >= 0 && rank < size, "rank ", rank, " of ", size);
  std::vector<RingStep> steps;
  steps.reserve(static_cast<std::size_t>(2 * (size - 1)));
  for (int k = 0; k < size - 1; ++k) {
    steps.push_back({RingPhase::kReduceScatter, wrap(rank - k, size), wrap(rank - k - 1, size)});
  }
  for (int k = 0; k < size - 1; ++k) {
    steps.push_back({RingPhase::kAllgather, wrap(rank + 1 - k, size), wrap(rank - k, size)});
  }
  return steps;
}

}  // namespace ringtune
