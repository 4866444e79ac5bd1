// The settings that may change while a job runs. Versioned: every change carries a new number, and all ranks
// switch between the same two batches.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "base/bytes.h"

namespace ringtune {

struct Knobs {
  std::uint64_t fusion_bytes = 16u << 20;    // a fused batch holds at most this much; 0 = no fusion
  std::int64_t cycle_time_ns = 1'000'000;    // how long an incomplete batch may wait for more tensors
  std::uint64_t segment_bytes = 128u << 10;  // pipelining unit of the ring
  std::uint32_t cache_capacity = 8192;       // tensors that are reported by a number; 0 = always in full
  std::uint32_t algorithm = 0;               // Algorithm (collective/algorithm.h); 0 = as the table of the job says
  std::uint32_t hierarchical = 0;            // Switch (collective/allreducer.h): 0 = auto, 1 = on, 2 = off
  bool schedule = true;                      // repeated steps follow a schedule without control messages
  std::uint32_t nccl_streams = 1;            // of a GPU, that batches by NCCL are dealt to
  friend bool operator==(const Knobs&, const Knobs&) = default;
};

/// The table of knobs: `visit(name, value, low, high)` for each. Names, checks, wire format and JSON come from it;
/// `ringtune/knobs.py` says the rest. `K` is Knobs, const or not; bounds are included and of type std::int64_t.
template <typename K, typename Visit>
constexpr void each_knob(K& knobs, Visit&& visit) {
  constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kMost32 = std::numeric_limits<std::int32_t>::max();
  visit("fusion_bytes", knobs.fusion_bytes, std::int64_t{0}, kAny);
  visit("cycle_time_ns", knobs.cycle_time_ns, std::int64_t{0}, kAny);
  visit("segment_bytes", knobs.segment_bytes, std::int64_t{1}, kAny);
  visit("cache_capacity", knobs.cache_capacity, std::int64_t{0}, kMost32);
  visit("algorithm", knobs.algorithm, std::int64_t{0}, std::int64_t{6});
  visit("hierarchical", knobs.hierarchical, std::int64_t{0}, std::int64_t{2});
  visit("step_schedule", knobs.schedule, std::int64_t{0}, std::int64_t{1});
  visit("nccl_streams", knobs.nccl_streams, std::int64_t{1}, std::int64_t{8});
}

/// Sets one knob by its name. Throws InvalidArgument for a name that is none, or a value out of its range.
void set_knob(Knobs& knobs, const std::string& name, std::int64_t value);

/// Throws InvalidArgument when a value is out of its range.
void check_knobs(const Knobs& knobs);

void write_knobs(ByteWriter& out, const Knobs& knobs);

/// Throws Protocol for a value out of its range.
[[nodiscard]] Knobs read_knobs(ByteReader& in);

/// Every knob as a member of a JSON object, without the braces.
[[nodiscard]] std::string json_members(const Knobs& knobs);

}  // namespace ringtune
