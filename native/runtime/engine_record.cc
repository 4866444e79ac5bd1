// What the engine leaves in the timeline.
#include <array>
#include <string>

#include "base/futex.h"
#include "base/log.h"
#include "runtime/engine.h"

namespace ringtune {
namespace {

std::string json_object(const Knobs& knobs, std::uint32_t knobs_version) {
  return "{\"knobs_version\":" + std::to_string(knobs_version) + "," + json_members(knobs) + "}";
}

}  // namespace

void Engine::record_clock(const ClockSample& sample) {
  last_look_ns_ = now_ns();
  const Generation& generation = tracer_.generation();
  if (generation.clock_error_ns >= 0) {
    const std::int64_t offset_ns = sample.offset_ns + generation.clock_offset_ns;
    const std::int64_t error_ns = sample.error_ns + generation.clock_error_ns;
    clock_offset_ns_.store(offset_ns, std::memory_order_relaxed);
    clock_error_ns_.store(error_ns, std::memory_order_relaxed);
    tracer_.event("CLOCK", "clock", sample.at_ns,
                  "{\"offset_ns\":" + std::to_string(offset_ns) + ",\"error_ns\":" + std::to_string(error_ns) + "}");
  }
  clock_looks_.store(looks_wanted_, std::memory_order_release);
  futex_wake(clock_looks_, kFutexWakeAll, FutexScope::kPrivate);
}

void Engine::record_knobs() const {
  if (tracer_.recording()) tracer_.event("KNOBS", "knobs", now_ns(), json_object(knobs(), knobs_version()));
}

void Engine::record_generation() const {
  const Generation& generation = tracer_.generation();
  std::string tracks;
  for (const int track : generation.tracks) tracks += (tracks.empty() ? "" : ",") + std::to_string(track);
  tracer_.event("GENERATION", "generation", now_ns(),
                "{\"generation\":" + std::to_string(generation.number) + ",\"ranks\":[" + tracks +
                    "],\"first_step\":" + std::to_string(generation.first_step) +
                    ",\"first_batch\":" + std::to_string(generation.first_batch) + "}");
}

GenerationProgress Engine::progress() const noexcept {
  // Relaxed: the numbers are looked at when nothing runs any more.
  return {.batch = last_batch_.load(std::memory_order_relaxed),
          .clock_offset_ns = clock_offset_ns_.load(std::memory_order_relaxed),
          .clock_error_ns = clock_error_ns_.load(std::memory_order_relaxed)};
}

void Engine::ran(std::uint32_t batch) noexcept {
  const std::uint32_t number = (batch & ~kScheduleBatches) + tracer_.generation().first_batch;
  if (number > last_batch_.load(std::memory_order_relaxed)) last_batch_.store(number, std::memory_order_relaxed);
}

/// Wakes the threads that wait for these operations.
void Engine::finish(std::span<const OperationPtr> batch, const BatchContext& context) {
  const bool recording = tracer_.recording();
  const std::int64_t begin_ns = recording ? now_ns() : 0;
  Span span = recording ? span_of(Stage::kCallback, batch.front()->request(), context) : Span{};
  for (const OperationPtr operation : batch) in_flight_bytes_ -= operation->prepared->bytes;
  tickets_.finish(batch, nullptr);  // from here on the operations may be used again
  if (!recording) return;
  span.begin_ns = begin_ns;
  span.end_ns = now_ns();
  Span counter = span;
  counter.stage = Stage::kCounter;
  counter.kind = static_cast<std::uint8_t>(Count::kInFlight);
  counter.begin_ns = span.end_ns;
  counter.bytes = in_flight_bytes_;
  counter.batch_id = static_cast<std::uint32_t>(tickets_.open());
  tracer_.record(std::array{span, counter});
}

/// Of a batch that has not run and whose operations will come again. In a handler of what refused it.
void Engine::finish_refused(std::span<const OperationPtr> batch) {
  for (const OperationPtr operation : batch) in_flight_bytes_ -= operation->prepared->bytes;
  tickets_.finish(batch, std::current_exception());
}

}  // namespace ringtune
