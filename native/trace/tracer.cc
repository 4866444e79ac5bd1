#include "trace/tracer.h"

#include <bit>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "trace/name_table.h"
#include "trace/thread_rings.h"
#include "trace/writer.h"

namespace ringtune {

struct Tracer::Impl {
  explicit Impl(const TracerOptions& options) : generation(options.generation), rings(options.ring_spans) {}
  const Generation generation;
  std::atomic<bool> recording{false};
  std::atomic<std::uint32_t> step{0};
  std::atomic<std::uint32_t> knobs_version{0};
  NameTable names;
  TensorLists lists;
  ThreadRings rings;
  std::mutex control;  // start and stop, one at a time
  // The writer of the current recording, read by recorders without a lock. Writers that ended are kept: a recorder may
  // have read the pointer just before the stop. A recording is rare and an ended writer is small.
  std::atomic<TraceWriter*> writer{nullptr};
  std::vector<std::unique_ptr<TraceWriter>> writers;
};

Tracer::Tracer(const TracerOptions& options) : impl_(std::make_shared<Impl>(options)), recording_(&impl_->recording) {
  RINGTUNE_CHECK(std::has_single_bit(options.ring_spans) && options.ring_spans >= 4, "ring of ", options.ring_spans,
                 " spans: a power of two from 4 on is needed");
}

Tracer::Tracer(const Tracer& job, TraceGroup group)
    : impl_(job.impl_), recording_(job.recording_), group_(std::make_unique<const TraceGroup>(std::move(group))) {}

Tracer::~Tracer() {
  try {
    stop();
  } catch (const Error&) {  // the writer has logged it
  }
}

void Tracer::start(std::unique_ptr<Sink> sink) {
  RINGTUNE_CHECK(sink != nullptr && !of_group());
  const std::lock_guard lock(impl_->control);
  if (recording()) throw InvalidArgument("the timeline is already being recorded; stop it before starting another");
  impl_->writers.push_back(std::make_unique<TraceWriter>(std::move(sink), &impl_->rings, &impl_->names));
  // Release: a thread that reads the pointer sees the writer behind it.
  impl_->writer.store(impl_->writers.back().get(), std::memory_order_release);
  recording_->store(true, std::memory_order_release);
}

void Tracer::stop() {
  if (of_group()) return;
  const std::lock_guard lock(impl_->control);
  if (!recording()) return;
  recording_->store(false, std::memory_order_release);
  const std::string error = impl_->writers.back()->finish();
  if (!error.empty()) throw TraceIo(error);
}

void Tracer::now_in(std::uint32_t step, std::uint32_t knobs_version) noexcept {
  impl_->step.store(step, std::memory_order_relaxed);
  impl_->knobs_version.store(knobs_version, std::memory_order_relaxed);
}

std::uint32_t Tracer::intern(std::string_view name) {
  if (group_ == nullptr || name.empty()) return impl_->names.intern(name);
  return impl_->names.intern(group_->label + ": " + std::string(name));
}

std::uint32_t Tracer::oldest_name() const noexcept { return impl_->names.oldest(); }

const Generation& Tracer::generation() const noexcept { return impl_->generation; }

TensorLists& Tracer::tensor_lists() noexcept { return impl_->lists; }

void Tracer::record(const Span& span) noexcept { record(std::span(&span, 1)); }

void Tracer::record(std::span<const Span> spans) noexcept {
  push(group_ == nullptr && generation().number <= 1 ? spans : translated(spans));
}

namespace {

/// Where the batches of a group begin among the 2^19 numbers that it shares with groups 512, 1024 ... before and after
/// it: these are as far apart as they can be, however many there are, for the bits above the ninth are mirrored.
constexpr std::uint32_t first_batch(std::uint32_t group) {
  std::uint32_t first = 0;
  for (std::uint32_t above = group >> 9U, half = 1U << 18U; above != 0; above >>= 1U, half >>= 1U) {
    if ((above & 1U) != 0) first |= half;
  }
  return first;
}

}  // namespace

std::span<const Span> Tracer::translated(std::span<const Span> spans) const {
  thread_local std::vector<Span> as_recorded;
  as_recorded.assign(spans.begin(), spans.end());
  for (Span& span : as_recorded) {
    if (span.stage == Stage::kWords) continue;
    if (group_ != nullptr) as_of_job(span);
    as_of_generation(span);
  }
  return as_recorded;
}

void Tracer::as_of_job(Span& span) const {
  if (span.batch_id != 0 && span.stage != Stage::kCounter) {
    const std::uint32_t of_schedule = span.batch_id >> 31U;  // which are numbered apart from the others
    const std::uint32_t first = first_batch(group_->number) + generation().first_batch;
    const std::uint32_t batch = (span.batch_id + first) & 0x7ffffU;
    span.batch_id = kGroupBatches | (group_->number & 0x1ffU) << 20U | of_schedule << 19U | batch;
  }
  span.process_set = group_->number;
  span.step = impl_->step.load(std::memory_order_relaxed);
  span.knobs_version = static_cast<std::uint16_t>(impl_->knobs_version.load(std::memory_order_relaxed));
  const auto peer = static_cast<std::size_t>(span.peer);
  if (span.stage == Stage::kAwait && peer < group_->members.size()) span.peer = group_->members[peer];
}

void Tracer::as_of_generation(Span& span) const noexcept {
  const std::uint32_t batch = span.batch_id & ~kScheduleBatches;
  // Batches of groups and of other libraries have numbers of their own.
  if (batch != 0 && batch < kGroupBatches && span.stage != Stage::kCounter) span.batch_id += generation().first_batch;
  if (span.stage == Stage::kAwait) span.peer = generation().track(span.peer);
}

void Tracer::push(std::span<const Span> spans) noexcept {
  // acquire: pairs with start(), so that the pointer read next is that writer's (or a later one's).
  if (!recording_->load(std::memory_order_acquire)) return;
  TraceWriter& writer = *impl_->writer.load(std::memory_order_acquire);
  ThreadRing* const ring = impl_->rings.mine();
  if (ring == nullptr) {
    writer.count_lost(count_spans(spans));
    return;
  }
  // seq_cst: see TraceWriter::sleep().
  if (!ring->spans.try_push_all(spans, std::memory_order_seq_cst)) {
    // Only this thread writes its count; load and store are cheaper than an atomic add.
    ring->dropped.store(ring->dropped.load(std::memory_order_relaxed) + count_spans(spans), std::memory_order_relaxed);
    return;
  }
  writer.pushed(*ring, spans.size());
}

void Tracer::event(std::string_view name, std::string_view category, std::int64_t at_ns, std::string args_json) {
  if (of_group() || !recording_->load(std::memory_order_acquire)) return;
  impl_->writer.load(std::memory_order_acquire)
      ->push_event({std::string(name), std::string(category), at_ns, std::move(args_json)});
}

std::uint64_t Tracer::dropped() const noexcept {
  const TraceWriter* const writer = impl_->writer.load(std::memory_order_acquire);
  return writer == nullptr ? 0 : writer->dropped();
}

std::uint64_t Tracer::recorded() const noexcept {
  const TraceWriter* const writer = impl_->writer.load(std::memory_order_acquire);
  return writer == nullptr ? 0 : writer->written();
}

}  // namespace ringtune
