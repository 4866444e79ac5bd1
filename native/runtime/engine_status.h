// What the threads of a rank know of its engine, whoever turns it.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "control/messages.h"
#include "fusion/knobs.h"
#include "trace/tracer.h"

namespace ringtune {

/// Thread-safe; never blocks but for a lock of a few instructions. Words are relaxed: a moment makes no difference to
/// who reads them, but where it is said.
class EngineStatus {
 public:
  EngineStatus(const Knobs& knobs, const Generation& generation)
      : knobs_(knobs), first_batch_(generation.first_batch), step_(generation.first_step) {}

  [[nodiscard]] Knobs knobs() const {
    const std::lock_guard lock(mutex_);
    return knobs_;
  }
  [[nodiscard]] std::uint32_t knobs_version() const noexcept { return knobs_version_.load(std::memory_order_relaxed); }
  /// The newest step that all ranks have reported; rank 0 only.
  [[nodiscard]] StepReport world_step() const {
    const std::lock_guard lock(mutex_);
    return world_step_;
  }
  /// The step that goes into the spans.
  [[nodiscard]] std::uint32_t step() const noexcept { return step_.load(std::memory_order_relaxed); }
  /// How far this rank has come in its job's timeline, without the step. Asked when nothing runs any more.
  [[nodiscard]] GenerationProgress progress() const noexcept {
    return {.batch = last_batch_.load(std::memory_order_relaxed),
            .clock_offset_ns = clock_offset_ns_.load(std::memory_order_relaxed),
            .clock_error_ns = clock_error_ns_.load(std::memory_order_relaxed)};
  }
  /// Whether this rank follows a schedule.
  [[nodiscard]] bool in_schedule() const noexcept { return in_schedule_.load(std::memory_order_relaxed); }
  /// Whether a caller is blocked. The driving thread reads it in every cycle; a nudge orders it for one that sleeps.
  [[nodiscard]] bool waited_for() const noexcept { return waiting_callers_.load(std::memory_order_relaxed) > 0; }
  /// Whether cycles are marked in the timeline.
  [[nodiscard]] bool marks_cycles() const noexcept { return marks_cycles_.load(std::memory_order_relaxed); }

  void mark_cycles(bool on) noexcept { marks_cycles_.store(on, std::memory_order_relaxed); }
  void begin_step(std::uint32_t step) noexcept { step_.store(step, std::memory_order_relaxed); }
  /// Every begin has its end.
  void begin_waiting() noexcept { waiting_callers_.fetch_add(1, std::memory_order_relaxed); }
  void end_waiting() noexcept { waiting_callers_.fetch_sub(1, std::memory_order_relaxed); }

  // The driving thread.
  void apply(const Knobs& knobs, std::uint32_t knobs_version) {
    const std::lock_guard lock(mutex_);
    knobs_ = knobs;
    knobs_version_.store(knobs_version, std::memory_order_relaxed);
  }
  void set_world_step(const StepReport& report) {
    const std::lock_guard lock(mutex_);
    world_step_ = report;
  }
  void ran(std::uint32_t batch) noexcept {
    const std::uint32_t number = (batch & ~kScheduleBatches) + first_batch_;
    if (number > last_batch_.load(std::memory_order_relaxed)) last_batch_.store(number, std::memory_order_relaxed);
  }
  /// The clock of the job's timeline minus this host's.
  void set_clock(std::int64_t offset_ns, std::int64_t error_ns) noexcept {
    clock_offset_ns_.store(offset_ns, std::memory_order_relaxed);
    clock_error_ns_.store(error_ns, std::memory_order_relaxed);
  }
  void set_in_schedule(bool in_schedule) noexcept { in_schedule_.store(in_schedule, std::memory_order_relaxed); }

 private:
  mutable std::mutex mutex_;  // guards what follows
  Knobs knobs_;
  StepReport world_step_;
  std::atomic<std::uint32_t> knobs_version_{0};
  const std::uint32_t first_batch_;
  std::atomic<std::uint32_t> last_batch_{0};
  std::atomic<std::int64_t> clock_offset_ns_{0};
  std::atomic<std::int64_t> clock_error_ns_{-1};
  std::atomic<std::uint32_t> step_{0};
  std::atomic<bool> in_schedule_{false};
  std::atomic<bool> marks_cycles_{false};
  std::atomic<int> waiting_callers_{0};
};

}  // namespace ringtune
