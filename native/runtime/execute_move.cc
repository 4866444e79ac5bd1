// Collectives over links that move bytes and reduce nothing: allgather, alltoall, broadcast and barrier.
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "base/clock.h"
#include "collective/alltoall.h"
#include "collective/collectives.h"
#include "runtime/executor.h"

namespace ringtune {

std::size_t row_bytes_of(const Request& request) noexcept {
  std::size_t bytes = size_of(request.dtype);
  for (std::size_t i = 1; i < request.shape.size(); ++i) bytes *= static_cast<std::size_t>(request.shape[i]);
  return bytes;
}

std::vector<std::size_t> bytes_of_rows(std::span<const std::int64_t> rows, std::size_t row_bytes) {
  std::vector<std::size_t> bytes;
  bytes.reserve(rows.size());
  for (const std::int64_t count : rows) bytes.push_back(static_cast<std::size_t>(count) * row_bytes);
  return bytes;
}

void fill_in_splits(Operation& operation, int size) {
  if (!operation.splits.empty()) return;
  operation.splits.assign(static_cast<std::size_t>(size), operation.request().shape.front() / size);
}

void tell_rows(Operation& operation, std::span<const std::int64_t> rows) {
  operation.gathered_shape = operation.request().shape;
  if (operation.gathered_shape.empty()) operation.gathered_shape.push_back(0);
  operation.gathered_shape.front() = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

std::size_t MemberBytes::all_received() const noexcept {
  return std::accumulate(received.begin(), received.end(), std::size_t{0});
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

MemberBytes agree_on_alltoall(Operation& operation, const BatchContext& context) {
  Mesh& mesh = context.communicator.mesh();
  const std::size_t row_bytes = row_bytes_of(operation.request());
  fill_in_splits(operation, mesh.size());
  MemberBytes bytes;
  bytes.sent = bytes_of_rows(operation.splits, row_bytes);
  operation.splits = exchange_counts(mesh, operation.splits);
  bytes.received = bytes_of_rows(operation.splits, row_bytes);
  tell_rows(operation, operation.splits);
  return bytes;
}

void Executor::alltoall(std::span<const OperationPtr> batch, const BatchContext& context) {
  Operation& operation = *batch.front();
  const std::int64_t begin_ns = now_ns();
  const MemberBytes bytes = agree_on_alltoall(operation, context);
  const std::span<std::byte> output = operation.place_gathered(bytes.all_received());
  ringtune::alltoall(context.communicator.mesh(), {operation.input, operation.prepared->bytes}, bytes.sent, output,
                     bytes.received);
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

void Executor::barrier(std::span<const OperationPtr> batch, const BatchContext& context) {
  const std::int64_t begin_ns = now_ns();
  if (!context.schedule) ring_barrier(context.communicator.ring());  // in a schedule all ranks have voted already
  record_batch(batch, context, begin_ns, 0);
}

}  // namespace ringtune
