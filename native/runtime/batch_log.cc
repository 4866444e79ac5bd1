#include "runtime/batch_log.h"

#include <algorithm>
#include <array>

#include "base/clock.h"

namespace ringtune {

void BatchLog::start(std::span<const OperationPtr> batch, const BatchContext& context, std::int64_t begin_ns) {
  std::int64_t negotiate_ns = 0;
  std::uint64_t bytes = 0;
  for (const OperationPtr operation : batch) {
    negotiate_ns += operation->agreed_ns - operation->submitted_ns;
    bytes += operation->prepared->bytes;
  }
  add(counters_.negotiate_ns, negotiate_ns);
  if (batch.front()->request().data_path != DataPath::kAcross) {  // those were counted when they began
    Traffic& traffic = counters_.traffic[static_cast<std::size_t>(batch.front()->request().kind)];
    add(traffic.bytes, bytes);
    add(traffic.operations, std::uint64_t{batch.size()});
  }
  add(counters_.batches, std::uint64_t{1});
  if (tracer_.recording()) record_tensors(batch, context, begin_ns);
}

double bus_factor(CollectiveKind kind, int size) noexcept {
  const double share = static_cast<double>(size - 1) / size;
  if (kind == CollectiveKind::kAllreduce) return 2 * share;
  return kind == CollectiveKind::kBroadcast ? 1.0 : share;
}

Span span_of(Stage stage, const Request& request, const BatchContext& context) noexcept {
  Span span{0,
            0,
            0,
            0,
            context.batch_id,
            context.step,
            static_cast<std::uint16_t>(context.knobs_version),
            stage,
            static_cast<std::uint8_t>(request.kind)};
  span.process_set = static_cast<std::uint16_t>(context.process_set);
  span.dtype = static_cast<std::uint8_t>(request.dtype);
  span.schedule = context.schedule ? 1 : 0;
  if (const DType wire = wire_dtype(request); wire != request.dtype) span.wire = static_cast<std::uint8_t>(wire) & 0x7f;
  return span;
}

/// Each tensor's negotiation and time in the queue.
void BatchLog::record_tensors(std::span<const OperationPtr> batch, const BatchContext& context, std::int64_t begin_ns) {
  Span about = span_of(Stage::kNegotiate, batch.front()->request(), context);
  about.end_ns = batch.front()->agreed_ns;
  recorder_.begin(about, begin_ns);
  for (const OperationPtr operation : batch) {
    recorder_.add(trace_name(tracer_, *operation->prepared), operation->prepared->bytes, operation->submitted_ns);
  }
  recorder_.finish();
}

void BatchLog::awaited(const Request& request, const BatchContext& context, std::int64_t posted_ns, std::int64_t end_ns,
                       int rank) {
  if (posted_ns == 0 || rank < 0 || !tracer_.recording()) return;
  Span span = span_of(Stage::kAwait, request, context);
  span.begin_ns = posted_ns;
  span.end_ns = end_ns;
  span.peer = rank;
  tracer_.record(span);
}

void BatchLog::copied(Stage stage, const Operation& operation, const BatchContext& context, std::int64_t begin_ns) {
  const std::int64_t end_ns = now_ns();
  add(counters_.copy_ns, end_ns - begin_ns);
  if (!tracer_.recording()) return;
  Span span = span_of(stage, operation.request(), context);
  span.begin_ns = begin_ns;
  span.end_ns = end_ns;
  span.bytes = operation.prepared->bytes;
  span.name_id = trace_name(tracer_, *operation.prepared);
  tracer_.record(span);
}

void BatchLog::begin_copies(Stage stage, const Request& first, const BatchContext& context) {
  recording_copies_ = tracer_.recording();
  copies_begin_ns_ = now_ns();
  if (recording_copies_) recorder_.begin(span_of(stage, first, context), copies_begin_ns_);
}

void BatchLog::end_copies() {
  add(counters_.copy_ns, now_ns() - copies_begin_ns_);
  if (recording_copies_) recorder_.finish();
}

Span BatchLog::span_of_batch(std::span<const OperationPtr> batch, const BatchContext& context) {
  const Request& first = batch.front()->request();
  Span span = span_of(Stage::kCommunicate, first, context);
  span.name_id = batch.size() == 1 ? tracer_.intern(first.name)
                                   : tracer_.intern(first.name + " +" + std::to_string(batch.size() - 1));
  return span;
}

std::int64_t BatchLog::communicated(std::span<const OperationPtr> batch, const BatchContext& context,
                                    std::int64_t begin_ns, std::size_t bytes, Algorithm algorithm) {
  const std::int64_t end_ns = now_ns();
  add(counters_.communicate_ns, end_ns - begin_ns);
  if (!tracer_.recording()) return end_ns;
  const Request& first = batch.front()->request();
  Span span = span_of_batch(batch, context);
  span.begin_ns = begin_ns;
  span.end_ns = end_ns;
  span.bytes = bytes;
  span.kind = span_kind(static_cast<std::uint8_t>(first.kind), static_cast<std::uint8_t>(algorithm));
  Span speed = span;
  speed.stage = Stage::kCounter;
  speed.kind = static_cast<std::uint8_t>(Count::kBusBandwidth);
  speed.begin_ns = end_ns;
  const double seconds = static_cast<double>(std::max<std::int64_t>(1, end_ns - begin_ns)) * 1e-9;
  const bool across = first.data_path == DataPath::kAcross;
  const int ranks = across ? context.communicator.allreducer().hosts() : context.communicator.size();
  speed.bytes = static_cast<std::uint64_t>(static_cast<double>(bytes) * bus_factor(first.kind, ranks) / seconds);
  tracer_.record(std::array{span, speed});
  return end_ns;
}

}  // namespace ringtune
