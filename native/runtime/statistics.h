// What a step cost: counters that the threads of the runtime add to, and their differences between two steps.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "collective/kind.h"

namespace ringtune {

/// What operations of one kind moved.
struct Traffic {
  std::atomic<std::uint64_t> operations{0};  // finished
  std::atomic<std::uint64_t> bytes{0};       // payload of this rank
};

/// Sums since the runtime started. Relaxed atomics: each is exact, a snapshot may be torn by an operation in flight.
struct Counters {
  std::array<Traffic, kCollectiveKinds> traffic;  // by kind
  std::atomic<std::uint64_t> batches{0};
  std::atomic<std::int64_t> negotiate_ns{0};    // submit -> agreed, summed over operations
  std::atomic<std::int64_t> communicate_ns{0};  // on the links; batches run one after another
  std::atomic<std::int64_t> copy_ns{0};         // into and out of the fusion buffer
  std::atomic<std::int64_t> wait_ns{0};         // callers blocked
  std::atomic<std::uint64_t> control_messages{0};
  std::atomic<std::uint64_t> control_bytes{0};
  std::atomic<std::uint64_t> stalls{0};  // reported by this rank
};

/// For those that only the driving thread adds to (all but wait_ns): one thread at a time writes, ordered by the drive
/// mutex, so that no locked instruction is needed.
template <typename Value>
void add(std::atomic<Value>& counter, Value value) noexcept {
  counter.store(counter.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
}

/// A snapshot of Traffic.
struct TrafficValues {
  std::int64_t operations = 0;
  std::int64_t bytes = 0;
};
[[nodiscard]] TrafficValues snapshot(const Traffic& traffic) noexcept;

/// A snapshot of Counters, or the difference of two.
struct CounterValues {
  std::int64_t bytes = 0;        // payload reduced, gathered, broadcast by this rank
  std::int64_t collectives = 0;  // operations finished
  std::int64_t batches = 0;
  std::int64_t negotiate_ns = 0;
  std::int64_t communicate_ns = 0;
  std::int64_t copy_ns = 0;
  std::int64_t wait_ns = 0;
  std::int64_t control_messages = 0;
  std::int64_t control_bytes = 0;
};

[[nodiscard]] CounterValues snapshot(const Counters& counters) noexcept;
[[nodiscard]] CounterValues operator-(const CounterValues& now, const CounterValues& before) noexcept;

/// One optimizer step on this rank; times on its monotonic clock.
struct StepStats {
  std::uint32_t step = 0;
  std::uint32_t knobs_version = 0;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  CounterValues values;
  std::int64_t world_step = -1;    // the newest step that all ranks reported; rank 0 only, -1 = none
  std::int64_t world_step_ns = 0;  // its longest duration over the ranks
};

}  // namespace ringtune
