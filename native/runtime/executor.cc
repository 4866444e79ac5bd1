#include "runtime/executor.h"

#include "base/check.h"
#include "base/clock.h"

namespace ringtune {

/// The spans before a batch, and its share in the counters.
void Executor::record_start(std::span<const OperationPtr> batch, const BatchContext& context, std::int64_t begin_ns) {
  std::int64_t negotiate_ns = 0;
  std::uint64_t bytes = 0;
  for (const OperationPtr operation : batch) {
    negotiate_ns += operation->agreed_ns - operation->submitted_ns;
    bytes += operation->prepared->bytes;
  }
  add(counters_.negotiate_ns, negotiate_ns);
  add(counters_.bytes, bytes);
  add(counters_.collectives, std::uint64_t{batch.size()});
  add(counters_.batches, std::uint64_t{1});
  if (!tracer_.recording()) return;
  for (const OperationPtr operation : batch) {
    const std::uint32_t name = trace_name(tracer_, *operation->prepared);
    const std::uint64_t size = operation->prepared->bytes;
    const auto kind = static_cast<std::uint8_t>(operation->request().kind);
    const auto epoch = static_cast<std::uint16_t>(context.epoch);
    tracer_.record({operation->submitted_ns, operation->agreed_ns, size, name, context.batch_id, context.step, epoch,
                    Stage::kNegotiate, kind});
    tracer_.record(
        {operation->agreed_ns, begin_ns, size, name, context.batch_id, context.step, epoch, Stage::kQueue, kind});
  }
}

void Executor::execute(std::span<const OperationPtr> batch, const BatchContext& context) {
  RINGTUNE_CHECK(!batch.empty());
  Operation& first = *batch.front();
  RINGTUNE_CHECK(drained(), "a declined round is still under way");
  record_start(batch, context, now_ns());
  switch (first.request().kind) {
    case CollectiveKind::kAllreduce:
      if (first.request().op == ReduceOp::kAdasum) {
        adasum(batch, context);
      } else {
        allreduce(batch, context);
      }
      break;
    case CollectiveKind::kAllgather:
      allgather(batch, context);
      break;
    case CollectiveKind::kBroadcast:
      broadcast(batch, context);
      break;
    case CollectiveKind::kBarrier:
      barrier(batch, context);
      break;
    case CollectiveKind::kAlltoall:
      alltoall(batch, context);
      break;
    case CollectiveKind::kReducescatter:
      reducescatter(batch, context);
      break;
    case CollectiveKind::kJoin:
    case CollectiveKind::kAddProcessSet:
    case CollectiveKind::kRemoveProcessSet:
      RINGTUNE_CHECK(false, name_of(first.request().kind), " is decided, not executed");
  }
}

double postscale_of(const Request& request, int size) noexcept {
  return request.op == ReduceOp::kAverage ? request.postscale / size : request.postscale;
}

void Executor::record(Stage stage, const Operation& operation, const BatchContext& context, std::int64_t begin_ns) {
  const std::int64_t end_ns = now_ns();
  add(counters_.copy_ns, end_ns - begin_ns);
  if (!tracer_.recording()) return;
  tracer_.record({begin_ns, end_ns, operation.prepared->bytes, trace_name(tracer_, *operation.prepared),
                  context.batch_id, context.step, static_cast<std::uint16_t>(context.epoch), stage,
                  static_cast<std::uint8_t>(operation.request().kind)});
}

std::int64_t Executor::record_batch(std::span<const OperationPtr> batch, const BatchContext& context,
                                    std::int64_t begin_ns, std::size_t bytes, Algorithm algorithm) {
  const std::int64_t end_ns = now_ns();
  add(counters_.communicate_ns, end_ns - begin_ns);
  if (!tracer_.recording()) return end_ns;
  const Request& first = batch.front()->request();
  const std::uint32_t name = batch.size() == 1 ? tracer_.intern(first.name)
                                               : tracer_.intern(first.name + " +" + std::to_string(batch.size() - 1));
  tracer_.record({begin_ns, end_ns, bytes, name, context.batch_id, context.step,
                  static_cast<std::uint16_t>(context.epoch), Stage::kCommunicate,
                  span_kind(static_cast<std::uint8_t>(first.kind), static_cast<std::uint8_t>(algorithm))});
  return end_ns;
}

}  // namespace ringtune
