#include "runtime/completions.h"

#include <array>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "control/process_sets.h"
#include "runtime/batch_log.h"

namespace ringtune {
namespace {

std::exception_ptr failure_of(const FailAction& action) {
  switch (action.kind) {
    case FailureKind::kInvalidArgument:
      return std::make_exception_ptr(InvalidArgument(action.message));
    case FailureKind::kShutDown:
      return std::make_exception_ptr(ShutDown(action.message));
    case FailureKind::kSomeAbsent:
      return std::make_exception_ptr(SomeAbsent(action.message));
    case FailureKind::kSomeSparse:
      return std::make_exception_ptr(SomeSparse(action.message));
    case FailureKind::kNotByNccl:
      return std::make_exception_ptr(DataPathRefused(action.message, DataPath::kNccl));
    case FailureKind::kNotPacked:
      return std::make_exception_ptr(DataPathRefused(action.message, DataPath::kNcclPacked));
    case FailureKind::kNotByRing:
      return std::make_exception_ptr(DataPathRefused(action.message, DataPath::kRing));
    case FailureKind::kNotWithinHosts:
      return std::make_exception_ptr(DataPathRefused(action.message, DataPath::kHierarchical));
    case FailureKind::kStageOnce:
      return std::make_exception_ptr(DataPathRefused(action.message));
    default:
      return std::make_exception_ptr(Mismatch(action.message));
  }
}

}  // namespace

void Completions::finish(std::span<const OperationPtr> batch, const BatchContext& context) {
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

void Completions::refused(std::span<const OperationPtr> batch) {
  for (const OperationPtr operation : batch) in_flight_bytes_ -= operation->prepared->bytes;
  tickets_.finish(batch, std::current_exception());
}

void Completions::decided(const std::string& name, std::int64_t number) {
  const OperationPtr operation = tickets_.in_flight(ProcessSets::kGlobal, name);
  RINGTUNE_CHECK(operation != nullptr, "'", name, "' was decided but is not in flight");
  operation->number = number;
  in_flight_bytes_ -= operation->prepared->bytes;
  if (tracer_.recording() && operation->request().kind == CollectiveKind::kJoin) {
    tracer_.event("JOIN", "join", now_ns(),
                  "{\"last_rank\":" + std::to_string(tracer_.generation().track(static_cast<int>(number))) + "}");
  }
  tickets_.finish({&operation, 1}, nullptr);
}

void Completions::failed(const FailAction& action) {
  if (tracer_.recording() && !runs_later(action.kind)) {
    tracer_.event("ERROR", "error", now_ns(),
                  "{\"tensor\":" + json_quote(action.name) + ",\"message\":" + json_quote(action.message) + "}");
  }
  const OperationPtr operation = tickets_.in_flight(action.process_set, action.name);
  if (operation == nullptr) return;
  in_flight_bytes_ -= operation->prepared->bytes;
  tickets_.finish({&operation, 1}, failure_of(action));
}

}  // namespace ringtune
