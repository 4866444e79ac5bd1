// Allgather, broadcast and barrier over links.
#include <cstring>
#include <numeric>

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
  if (!context.schedule) ring_barrier(context.communicator.ring());  // in a schedule all have voted: they are here
  record_batch(batch, context, begin_ns, 0);
}

MemberBytes agree_on_allgather(Operation& operation, const BatchContext& context) {
  const Request& request = operation.request();
  RINGTUNE_CHECK_EQ(context.rows.size(), static_cast<std::size_t>(context.communicator.size()));
  const std::size_t row_bytes = row_bytes_of(request);
  MemberBytes bytes;
  bytes.received = bytes_of_rows(context.rows, row_bytes);
  bytes.sent.assign(context.rows.size(), operation.prepared->bytes);
  tell_rows(operation, context.rows);
  return bytes;
}

void Executor::allgather(std::span<const OperationPtr> batch, const BatchContext& context) {
  Operation& operation = *batch.front();
  const MemberBytes blocks = agree_on_allgather(operation, context);
  const std::span<std::byte> output = operation.place_gathered(blocks.all_received());
  const auto own = blocks.received.begin() + context.communicator.rank();
  const std::int64_t copy_ns = now_ns();
  const std::size_t bytes = operation.prepared->bytes;
  if (bytes > 0) {
    std::byte* const place = output.data() + std::accumulate(blocks.received.begin(), own, std::size_t{0});
    std::memcpy(place, operation.input, bytes);
  }
  record(Stage::kCopyIn, operation, context, copy_ns);
  const std::int64_t begin_ns = now_ns();
  ring_allgather(context.communicator.ring(), output, blocks.received, {.segment_bytes = knobs_.segment_bytes});
  record_batch(batch, context, begin_ns, output.size());
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
