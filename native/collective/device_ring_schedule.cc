#include "collective/device_ring_schedule.h"

#include <algorithm>

#include "collective/ring_schedule.h"

namespace ringtune {
namespace {

/// So that all ranks count alike, every chunk has as many segments as the largest; some are empty.
std::size_t segments_of(std::span<const ChunkRange> chunks, std::size_t segment_bytes) {
  std::size_t most = 0;
  for (const ChunkRange& chunk : chunks) most = std::max(most, chunk.size);
  return std::max<std::size_t>((most + segment_bytes - 1) / segment_bytes, 1);
}

struct Turn {
  int chunk;
  bool reduces;
};

/// Step k needs what the previous rank did in its step k - 1, or put in before the first.
DeviceRingPlan plan_of(std::span<const Turn> turns, std::span<const ChunkRange> chunks, std::size_t segment_bytes) {
  const std::size_t segments = segments_of(chunks, segment_bytes);
  DeviceRingPlan plan;
  plan.steps.reserve(turns.size() * segments);
  for (std::size_t turn = 0; turn < turns.size(); ++turn) {
    const ChunkRange& chunk = chunks[static_cast<std::size_t>(turns[turn].chunk)];
    for (std::size_t segment = 0; segment < segments; ++segment) {
      const std::size_t begin = std::min(segment * segment_bytes, chunk.size);
      const std::size_t bytes = std::min(segment_bytes, chunk.size - begin);
      const auto done = static_cast<std::uint32_t>(2 + turn * segments + segment);
      const auto needs = turn == 0 ? 1 : done - static_cast<std::uint32_t>(segments);
      plan.steps.push_back({chunk.begin + begin, bytes, turns[turn].reduces, needs, done});
    }
  }
  plan.total = static_cast<std::uint32_t>(1 + turns.size() * segments);
  return plan;
}

}  // namespace

DeviceRingPlan device_allreduce_plan(const DeviceRingShape& shape, std::size_t bytes, std::size_t element_bytes) {
  const std::vector<ChunkRange> chunks = cut_chunks(bytes, element_bytes, shape.size);
  std::vector<Turn> turns;
  for (const RingStep& step : ring_steps(shape.rank, shape.size)) {
    turns.push_back({step.recv_chunk, step.phase == RingPhase::kReduceScatter});
  }
  return plan_of(turns, chunks, shape.segment_bytes);
}

DeviceRingPlan device_allgather_plan(const DeviceRingShape& shape, std::span<const std::size_t> block_bytes) {
  std::vector<ChunkRange> blocks;
  std::size_t begin = 0;
  for (const std::size_t bytes : block_bytes) {
    blocks.push_back({begin, bytes});
    begin += bytes;
  }
  std::vector<Turn> turns;
  for (int back = 1; back < shape.size; ++back) {
    turns.push_back({(shape.rank - back + shape.size) % shape.size, false});
  }
  return plan_of(turns, blocks, shape.segment_bytes);
}

DeviceRingPlan device_broadcast_plan(const DeviceRingShape& shape, std::size_t bytes, int root) {
  const ChunkRange all[] = {{0, bytes}};
  const Turn turn[] = {{0, false}};
  DeviceRingPlan plan = plan_of(turn, all, shape.segment_bytes);
  if (shape.rank == root) {
    plan.steps.clear();
  } else if ((shape.rank - 1 + shape.size) % shape.size != root) {
    // The one before gives what it has taken, segment by segment.
    for (DeviceRingStep& step : plan.steps) step.needs = step.done;
  } else {
    for (DeviceRingStep& step : plan.steps) step.needs = plan.total;  // the root has all at once
  }
  return plan;
}

}  // namespace ringtune
