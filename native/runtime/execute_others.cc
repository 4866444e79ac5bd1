// Allgather, broadcast and barrier.
#include <cstring>

#include "base/check.h"
#include "base/clock.h"
#include "collective/collectives.h"
#include "runtime/executor.h"

namespace ringtune {

std::size_t row_bytes_of(const Request& request) noexcept {
  std::size_t bytes = size_of(request.dtype);
  for (std::size_t i = 1; i < request.shape.size(); ++i) bytes *= static_cast<std::size_t>(request.shape[i]);
  return bytes;
}

void Executor::barrier(std::span<const OperationPtr> batch, const BatchContext& context) {
  const std::int64_t begin_ns = now_ns();
  ring_barrier(context.communicator.ring());
  record_batch(batch, context, begin_ns, 0);
}

void Executor::allgather(std::span<const OperationPtr> batch, const BatchContext& context) {
  Operation& operation = *batch.front();
  const Request& request = operation.request();
  RINGTUNE_CHECK_EQ(context.rows.size(), static_cast<std::size_t>(context.communicator.size()));
  const std::size_t row_bytes = row_bytes_of(request);
  std::vector<std::size_t> blocks;
  std::size_t total = 0;
  std::size_t own = 0;
  std::int64_t all_rows = 0;
  for (std::size_t rank = 0; rank < context.rows.size(); ++rank) {
    if (rank == static_cast<std::size_t>(context.communicator.rank())) own = total;
    blocks.push_back(static_cast<std::size_t>(context.rows[rank]) * row_bytes);
    total += blocks.back();
    all_rows += context.rows[rank];
  }
  operation.gathered.resize(total);
  operation.gathered_shape = request.shape;
  if (operation.gathered_shape.empty()) operation.gathered_shape.push_back(0);
  operation.gathered_shape.front() = all_rows;
  const std::int64_t copy_ns = now_ns();
  const std::size_t bytes = operation.prepared->bytes;
  if (bytes > 0) std::memcpy(operation.gathered.data() + own, operation.input, bytes);
  record(Stage::kCopyIn, operation, context, copy_ns);
  const std::int64_t begin_ns = now_ns();
  ring_allgather(context.communicator.ring(), operation.gathered, blocks, {.segment_bytes = knobs_.segment_bytes});
  record_batch(batch, context, begin_ns, total);
}

void Executor::broadcast(std::span<const OperationPtr> batch, const BatchContext& context) {
  Operation& operation = *batch.front();
  const Request& request = operation.request();
  const std::size_t bytes = operation.prepared->bytes;
  Communicator& communicator = context.communicator;
  const int root = communicator.position_of(request.root);
  if (communicator.rank() == root && operation.output != operation.input && bytes > 0) {
    std::memcpy(operation.output, operation.input, bytes);
  }
  const std::int64_t begin_ns = now_ns();
  chain_broadcast(communicator.ring(), {operation.output, bytes}, root, {.segment_bytes = knobs_.segment_bytes});
  record_batch(batch, context, begin_ns, bytes);
}

}  // namespace ringtune
