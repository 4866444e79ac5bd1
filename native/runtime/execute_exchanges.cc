// Adasum, and alltoall and reducescatter over links.
#include <numeric>

#include "base/clock.h"
#include "collective/adasum.h"
#include "collective/alltoall.h"
#include "collective/reducescatter.h"
#include "device/cpu_kernels.h"
#include "fusion/plan.h"
#include "runtime/executor.h"

namespace ringtune {

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

void Executor::adasum(std::span<const OperationPtr> batch, const BatchContext& context) {
  Operation& operation = *batch.front();
  const Request& request = operation.request();
  const Prepared& prepared = *operation.prepared;
  const std::int64_t copy_ns = now_ns();
  scale_copy(operation.output, operation.input, prepared.count, request.dtype, request.prescale);
  record(Stage::kCopyIn, operation, context, copy_ns);
  const std::int64_t begin_ns = now_ns();
  adasum_allreduce(context.communicator.mesh(), {operation.output, prepared.bytes}, request.dtype);
  record_batch(batch, context, begin_ns, prepared.bytes);
  if (request.postscale == 1.0) return;
  const std::int64_t out_ns = now_ns();
  scale_copy(operation.output, operation.output, prepared.count, request.dtype, request.postscale);
  record(Stage::kCopyOut, operation, context, out_ns);
}

std::size_t MemberBytes::all_received() const noexcept {
  return std::accumulate(received.begin(), received.end(), std::size_t{0});
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

void Executor::reducescatter(std::span<const OperationPtr> batch, const BatchContext& context) {
  Operation& operation = *batch.front();
  const Request& request = operation.request();
  Communicator& communicator = context.communicator;
  const auto own = static_cast<std::size_t>(communicator.rank());
  const std::vector<std::size_t> chunks =
      bytes_of_rows(cut_rows(request.shape.front(), communicator.size()), row_bytes_of(request));
  const std::int64_t copy_ns = now_ns();
  const std::span<std::byte> buffer = buffer_.take(operation.prepared->bytes).first(operation.prepared->bytes);
  scale_copy(buffer.data(), operation.input, operation.prepared->count, request.dtype, request.prescale);
  record(Stage::kCopyIn, operation, context, copy_ns);
  const std::int64_t begin_ns = now_ns();
  const ReduceOp op = wire_op(request.op);
  ring_reducescatter(communicator.ring(), buffer, chunks, request.dtype, op, {.segment_bytes = knobs_.segment_bytes});
  record_batch(batch, context, begin_ns, buffer.size());
  const std::int64_t out_ns = now_ns();
  const std::size_t begin = std::accumulate(chunks.begin(), chunks.begin() + communicator.rank(), std::size_t{0});
  scale_copy(operation.output, buffer.data() + begin, chunks[own] / size_of(request.dtype), request.dtype,
             postscale_of(request, communicator.size()));
  record(Stage::kCopyOut, operation, context, out_ns);
}

}  // namespace ringtune
