// The recorder. Threads write spans into their own single-producer ring; one writer thread drains the rings into the
// sink and blocks (no timer, no spin) when nothing is recorded. A full ring drops the span and counts it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trace/batch_slots.h"
#include "trace/generation.h"
#include "trace/sink.h"
#include "trace/span.h"

namespace ringtune {

struct TracerOptions {
  std::size_t ring_spans = 1 << 16;  // per recording thread, power of two
  Generation generation = {};        // of an elastic job: spans are recorded as they stand in its timeline
};

/// Some ranks of a job that have a runtime of their own beside that of all ranks, and how their spans stand in its
/// timeline.
struct TraceGroup {
  std::uint16_t number = 0;  // in the place of a process set; the same on all members
  std::string label;         // before the names of its operations
  std::vector<int> members;  // the ranks in the job of its ranks
};

/// Batches of groups have numbers from here on, which end below those of
/// `ringtune.timeline.vocabulary.FOREIGN_BATCHES`.
inline constexpr std::uint32_t kGroupBatches = 1U << 29;
/// The bit in the numbers of a step schedule's batches.
inline constexpr std::uint32_t kScheduleBatches = 1U << 31;
/// In the place of a batch's number, from here on: those of messages, which are negative as signed numbers.
inline constexpr std::uint32_t kMessages = 3U << 30;

/// Thread-safe; owns the rings, the writer thread and, while recording, the sink. `record` never blocks and never
/// allocates after the thread's first call. A sink that throws loses what it held and is tried again: the reason is
/// logged once, what was lost counts as dropped, and stop() throws TraceIo. In a forked child the tracer is inert.
class Tracer {
 public:
  explicit Tracer(const TracerOptions& options = {});
  /// Records the spans of a group into what `job` records, whose steps they belong to. Neither starts nor stops a
  /// recording; events are left out, since their ranks, clocks and knobs are the group's own. May outlive `job`.
  Tracer(const Tracer& job, TraceGroup group);
  ~Tracer();  // stops its own recording, drains, closes the sink; never throws
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  /// Begins to record into `sink`; the counts start at zero. Throws InvalidArgument when already recording.
  void start(std::unique_ptr<Sink> sink);
  /// Drains all rings, writes the dropped count, closes the sink. No-op when not recording. Throws TraceIo.
  void stop();
  [[nodiscard]] bool recording() const noexcept { return recording_->load(std::memory_order_relaxed); }
  [[nodiscard]] bool of_group() const noexcept { return group_ != nullptr; }
  /// Ranks in the arguments of events are to be given as they stand in the timeline (Generation::track).
  [[nodiscard]] const Generation& generation() const noexcept;
  /// To which step and version of the knobs the spans of groups belong from now on.
  void now_in(std::uint32_t step, std::uint32_t knobs_version) noexcept;

  /// Name -> id. Any thread. Cheap for a known name, but callers should cache it as long as it is not smaller than
  /// oldest_name(): after many other names it is to be asked for again.
  [[nodiscard]] std::uint32_t intern(std::string_view name);
  [[nodiscard]] std::uint32_t oldest_name() const noexcept;
  void record(const Span& span) noexcept;  // no-op when not recording
  /// Several at once, all or none; cheaper than one by one.
  void record(std::span<const Span> spans) noexcept;
  /// For BatchRecorder, which records the tensors of a batch.
  [[nodiscard]] TensorLists& tensor_lists() noexcept;
  /// A rare event with free arguments (knob change, stall, error, clock sample); `args_json` must be a JSON object.
  /// Allocates and takes a lock. No-op when not recording.
  void event(std::string_view name, std::string_view category, std::int64_t at_ns, std::string args_json);

  /// Of the recording that runs or ended last. recorded = spans that the sink has written.
  [[nodiscard]] std::uint64_t dropped() const noexcept;
  [[nodiscard]] std::uint64_t recorded() const noexcept;

 private:
  struct Impl;
  void push(std::span<const Span> spans) noexcept;
  [[nodiscard]] std::span<const Span> translated(std::span<const Span> spans) const;
  void as_of_job(Span& span) const;
  void as_of_generation(Span& span) const noexcept;

  std::shared_ptr<Impl> impl_;
  std::atomic<bool>* recording_;  // in impl_
  std::unique_ptr<const TraceGroup> group_;
};

}  // namespace ringtune
