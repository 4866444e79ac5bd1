// What the ranks of a ring on GPUs do, as tables: pure functions. Every rank has a buffer that its next one reads;
// nobody writes into another's. All ranks count the steps that they have done, and wait for the count of the one before
// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ringtune {

/// Takes bytes of the previous rank's buffer to the same place of the own one, reduced into it or copied over it.
struct DeviceRingStep {
  std::size_t begin;  // bytes
  std::size_t bytes;  // may be 0
  bool reduces;
  std::uint32_t needs;  // the previous rank's count before it
  std::uint32_t done;   // the own count after it
  friend bool operator==(const DeviceRingStep&, const DeviceRingStep&) = default;
};

struct DeviceRingPlan {
  std::vector<DeviceRingStep> steps;
  std::uint32_t total = 0;  // every rank's count when all is done; it is 1 when what a rank gives is in its buffer
};

struct DeviceRingShape {
  int rank;
  int size;
  std::size_t segment_bytes;  // what is handed over at once; a multiple of 64
};

/// Each rank's first `bytes` are reduced into all ranks': chunks go round and are cut into segments, so that a rank
/// works on one while the next takes the one before.
[[nodiscard]] DeviceRingPlan device_allreduce_plan(const DeviceRingShape& shape, std::size_t bytes,
                                                   std::size_t element_bytes);
/// The blocks of all ranks stand one behind the other, the own one is there.
[[nodiscard]] DeviceRingPlan device_allgather_plan(const DeviceRingShape& shape,
                                                   std::span<const std::size_t> block_bytes);
[[nodiscard]] DeviceRingPlan device_broadcast_plan(const DeviceRingShape& shape, std::size_t bytes, int root);

}  // namespace ringtune
