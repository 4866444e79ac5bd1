#include "runtime/executor.h"

#include <cstring>

#include "base/check.h"
#include "base/clock.h"
#include "collective/collectives.h"
#include "device/cpu_kernels.h"
#include "fusion/plan.h"

namespace ringtune {

void Executor::execute(std::span<const OperationPtr> batch, const BatchContext& context) {
  RINGTUNE_CHECK(!batch.empty());
  Operation& first = *batch.front();
  const std::int64_t begin_ns = now_ns();
  for (const OperationPtr& operation : batch) {
    counters_.negotiate_ns.fetch_add(operation->agreed_ns - operation->submitted_ns, std::memory_order_relaxed);
    counters_.bytes.fetch_add(byte_count(operation->request), std::memory_order_relaxed);
    if (tracer_.recording()) {
      const std::uint32_t name = tracer_.intern(operation->request.name);
      const std::uint64_t bytes = byte_count(operation->request);
      const auto kind = static_cast<std::uint8_t>(operation->request.kind);
      const auto epoch = static_cast<std::uint16_t>(context.epoch);
      tracer_.record({operation->submitted_ns, operation->agreed_ns, bytes, name, context.batch_id, context.step, epoch,
                      Stage::kNegotiate, kind});
      tracer_.record(
          {operation->agreed_ns, begin_ns, bytes, name, context.batch_id, context.step, epoch, Stage::kQueue, kind});
    }
  }
  switch (first.request.kind) {
    case CollectiveKind::kAllreduce:
      if (batch.size() == 1) {
        allreduce_one(batch, context);
      } else {
        allreduce_fused(batch, context);
      }
      break;
    case CollectiveKind::kAllgather:
      allgather(batch, context);
      break;
    case CollectiveKind::kBroadcast:
      broadcast(batch, context);
      break;
    case CollectiveKind::kBarrier: {
      const std::int64_t start_ns = now_ns();
      ring_barrier(group_);
      record_batch(batch, context, start_ns, 0);
      break;
    }
    default:
      RINGTUNE_CHECK(false, "collective ", name_of(first.request.kind), " has no executor");
  }
  counters_.collectives.fetch_add(batch.size(), std::memory_order_relaxed);
  counters_.batches.fetch_add(1, std::memory_order_relaxed);
}

/// Average is the sum times 1 / size, as in Horovod.
double Executor::postscale(const Request& request) const noexcept {
  return request.op == ReduceOp::kAverage ? request.postscale / group_.size : request.postscale;
}

/// A tensor alone needs no fusion buffer: it is reduced where its result belongs.
void Executor::allreduce_one(std::span<const OperationPtr> batch, const BatchContext& context) {
  Operation& operation = *batch.front();
  const Request& request = operation.request;
  const std::size_t count = element_count(request);
  if (operation.output != operation.input || request.prescale != 1.0) {
    const std::int64_t begin_ns = now_ns();
    scale_copy(operation.output, operation.input, count, request.dtype, request.prescale);
    record(Stage::kCopyIn, operation, context, begin_ns);
  }
  reduce({operation.output, byte_count(request)}, batch, context);
  if (const double factor = postscale(request); factor != 1.0) {
    const std::int64_t begin_ns = now_ns();
    scale_copy(operation.output, operation.output, count, request.dtype, factor);
    record(Stage::kCopyOut, operation, context, begin_ns);
  }
}

void Executor::allreduce_fused(std::span<const OperationPtr> batch, const BatchContext& context) {
  offsets_.clear();
  std::size_t total = 0;
  for (const OperationPtr& operation : batch) {
    offsets_.push_back(total);
    total += fused_size(byte_count(operation->request));
  }
  const std::span<std::byte> buffer = buffer_.take(total);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const Operation& operation = *batch[i];
    const std::int64_t begin_ns = now_ns();
    const std::size_t bytes = byte_count(operation.request);
    std::byte* slot = buffer.data() + offsets_[i];
    scale_copy(slot, operation.input, element_count(operation.request), operation.request.dtype,
               operation.request.prescale);
    // The padding travels and is added up as well: zeros, so that no stale bits turn into slow or trapping numbers.
    std::memset(slot + bytes, 0, fused_size(bytes) - bytes);
    record(Stage::kCopyIn, operation, context, begin_ns);
  }
  reduce(buffer, batch, context);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const Operation& operation = *batch[i];
    const std::int64_t begin_ns = now_ns();
    scale_copy(operation.output, buffer.data() + offsets_[i], element_count(operation.request), operation.request.dtype,
               postscale(operation.request));
    record(Stage::kCopyOut, operation, context, begin_ns);
  }
}

void Executor::reduce(std::span<std::byte> data, std::span<const OperationPtr> batch, const BatchContext& context) {
  const Request& request = batch.front()->request;
  const ReduceOp op = request.op == ReduceOp::kAverage ? ReduceOp::kSum : request.op;
  const std::int64_t begin_ns = now_ns();
  ring_allreduce(group_, data, request.dtype, op, {.segment_bytes = knobs_.segment_bytes});
  record_batch(batch, context, begin_ns, data.size());
}

void Executor::allgather(std::span<const OperationPtr> batch, const BatchContext& context) {
  Operation& operation = *batch.front();
  const Request& request = operation.request;
  RINGTUNE_CHECK_EQ(context.rows.size(), static_cast<std::size_t>(group_.size));
  std::size_t row_bytes = size_of(request.dtype);
  for (std::size_t i = 1; i < request.shape.size(); ++i) row_bytes *= static_cast<std::size_t>(request.shape[i]);
  std::vector<std::size_t> blocks;
  std::size_t total = 0;
  std::size_t own = 0;
  std::int64_t all_rows = 0;
  for (std::size_t rank = 0; rank < context.rows.size(); ++rank) {
    if (rank == static_cast<std::size_t>(group_.rank)) own = total;
    blocks.push_back(static_cast<std::size_t>(context.rows[rank]) * row_bytes);
    total += blocks.back();
    all_rows += context.rows[rank];
  }
  operation.gathered.resize(total);
  operation.gathered_shape = request.shape;
  if (operation.gathered_shape.empty()) operation.gathered_shape.push_back(0);
  operation.gathered_shape.front() = all_rows;
  const std::int64_t copy_ns = now_ns();
  const std::size_t bytes = byte_count(request);
  if (bytes > 0) std::memcpy(operation.gathered.data() + own, operation.input, bytes);
  record(Stage::kCopyIn, operation, context, copy_ns);
  const std::int64_t begin_ns = now_ns();
  ring_allgather(group_, operation.gathered, blocks, {.segment_bytes = knobs_.segment_bytes});
  record_batch(batch, context, begin_ns, total);
}

void Executor::broadcast(std::span<const OperationPtr> batch, const BatchContext& context) {
  Operation& operation = *batch.front();
  const Request& request = operation.request;
  const std::size_t bytes = byte_count(request);
  if (group_.rank == request.root && operation.output != operation.input && bytes > 0) {
    std::memcpy(operation.output, operation.input, bytes);
  }
  const std::int64_t begin_ns = now_ns();
  chain_broadcast(group_, {operation.output, bytes}, request.root, {.segment_bytes = knobs_.segment_bytes});
  record_batch(batch, context, begin_ns, bytes);
}

void Executor::record(Stage stage, const Operation& operation, const BatchContext& context, std::int64_t begin_ns) {
  const std::int64_t end_ns = now_ns();
  counters_.copy_ns.fetch_add(end_ns - begin_ns, std::memory_order_relaxed);
  if (!tracer_.recording()) return;
  tracer_.record({begin_ns, end_ns, byte_count(operation.request), tracer_.intern(operation.request.name),
                  context.batch_id, context.step, static_cast<std::uint16_t>(context.epoch), stage,
                  static_cast<std::uint8_t>(operation.request.kind)});
}

void Executor::record_batch(std::span<const OperationPtr> batch, const BatchContext& context, std::int64_t begin_ns,
                            std::size_t bytes) {
  const std::int64_t end_ns = now_ns();
  counters_.communicate_ns.fetch_add(end_ns - begin_ns, std::memory_order_relaxed);
  if (!tracer_.recording()) return;
  const Request& first = batch.front()->request;
  const std::uint32_t name = batch.size() == 1 ? tracer_.intern(first.name)
                                               : tracer_.intern(first.name + " +" + std::to_string(batch.size() - 1));
  tracer_.record({begin_ns, end_ns, bytes, name, context.batch_id, context.step,
                  static_cast<std::uint16_t>(context.epoch), Stage::kCommunicate,
                  static_cast<std::uint8_t>(first.kind)});
}

}  // namespace ringtune
