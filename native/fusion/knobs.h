// The settings that may change while a job runs. Versioned: every change carries a new number, and all ranks
// switch between the same two batches.
#pragma once

#include <cstdint>

namespace ringtune {

struct Knobs {
  std::uint64_t fusion_bytes = 16u << 20;    // a fused batch holds at most this much; 0 = no fusion
  std::int64_t cycle_time_ns = 1'000'000;    // how long an incomplete batch may wait for more tensors
  std::uint64_t segment_bytes = 128u << 10;  // pipelining unit of the ring
  std::uint32_t cache_capacity = 8192;       // tensors that are reported by a number; 0 = always in full
  std::uint32_t algorithm = 0;               // Algorithm (collective/algorithm.h); 0 = as the table of the job says
  std::uint32_t hierarchical = 0;            // Switch (collective/allreducer.h): 0 = auto, 1 = on, 2 = off
  bool schedule = true;                      // repeated steps follow a schedule without control messages
  std::uint32_t nccl_streams = 1;            // of a GPU, that batches by NCCL are dealt to; from 1
  friend bool operator==(const Knobs&, const Knobs&) = default;
};

}  // namespace ringtune
