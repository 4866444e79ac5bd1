#include "runtime/link_collectives.h"

#include <cstring>
#include <numeric>

#include "base/check.h"
#include "base/clock.h"
#include "collective/adasum.h"
#include "collective/alltoall.h"
#include "collective/collectives.h"
#include "collective/reducescatter.h"
#include "device/cpu_kernels.h"
#include "fusion/plan.h"
#include "runtime/rows.h"

namespace ringtune {
namespace {

bool worth_staging(std::size_t bytes, const Communicator& communicator) noexcept {
  return communicator.size() > 1 && bytes >= BatchCopies::kWorthStaging;
}

}  // namespace

void LinkCollectives::run(std::span<const OperationPtr> batch, const BatchContext& context) {
  const Request& first = batch.front()->request();
  switch (first.kind) {
    case CollectiveKind::kAllreduce:
      return first.op == ReduceOp::kAdasum ? adasum(batch, context) : allreduce(batch, context);
    case CollectiveKind::kAllgather:
      return allgather(batch, context);
    case CollectiveKind::kBroadcast:
      return broadcast(batch, context);
    case CollectiveKind::kBarrier:
      return barrier(batch, context);
    case CollectiveKind::kAlltoall:
      return alltoall(batch, context);
    case CollectiveKind::kReducescatter:
      return reducescatter(batch, context);
    case CollectiveKind::kJoin:
    case CollectiveKind::kAddProcessSet:
    case CollectiveKind::kRemoveProcessSet:
      RINGTUNE_CHECK(false, name_of(first.kind), " is decided, not executed");
  }
}

void LinkCollectives::allreduce(std::span<const OperationPtr> batch, const BatchContext& context) {
  const bool alone = batch.size() == 1 && !batch.front()->request().wire;
  alone ? allreduce_one(batch, context) : allreduce_fused(batch, context);
}

/// A tensor alone that travels as it is needs no fusion buffer: it is reduced where its result belongs.
void LinkCollectives::allreduce_one(std::span<const OperationPtr> batch, const BatchContext& context) {
  Operation& operation = *batch.front();
  const Request& request = operation.request();
  copies_.lay_in_place(operation, context.communicator.size());
  const std::span<std::byte> data = copies_.buffer();
  const bool moves = operation.output != operation.input || request.prescale != 1.0;
  const bool scales = postscale_of(request, context.communicator.size()) != 1.0;
  if (moves && worth_staging(data.size(), context.communicator)) {
    reduce(data, batch, context, &copies_);
    return;
  }
  if (moves) {
    const std::int64_t begin_ns = now_ns();
    copies_.copy_in(0);
    log_.copied(Stage::kCopyIn, operation, context, begin_ns);
  }
  reduce(data, batch, context, nullptr);
  if (scales) {
    const std::int64_t begin_ns = now_ns();
    copies_.copy_out(0);
    log_.copied(Stage::kCopyOut, operation, context, begin_ns);
  }
}

/// Tensors that travel as another dtype are cast by the copies.
void LinkCollectives::allreduce_fused(std::span<const OperationPtr> batch, const BatchContext& context) {
  const bool staged = lay_out(batch, context);
  if (!staged) copy_all(Stage::kCopyIn, context);
  reduce(copies_.buffer(), batch, context, staged ? &copies_ : nullptr);
  if (!staged) copy_all(Stage::kCopyOut, context);
}

bool LinkCollectives::lay_out(std::span<const OperationPtr> batch, const BatchContext& context) {
  const std::size_t bytes = copies_.lay_out(batch, context.communicator.size());
  copies_.use(buffer_.take(bytes));
  return worth_staging(bytes, context.communicator);
}

void LinkCollectives::copy_all(Stage stage, const BatchContext& context) {
  log_.begin_copies(stage, copies_.operation(0).request(), context);
  for (std::size_t i = 0; i < copies_.tensors(); ++i) {
    stage == Stage::kCopyIn ? copies_.copy_in(i) : copies_.copy_out(i);
    log_.copied(copies_.operation(i));
  }
  log_.end_copies();
}

void LinkCollectives::reduce(std::span<std::byte> data, std::span<const OperationPtr> batch,
                             const BatchContext& context, BatchCopies* staged) {
  const Request& request = batch.front()->request();
  const ReduceOp op = wire_op(request.op);
  const std::int64_t begin_ns = now_ns();
  Allreducer& allreducer = context.communicator.allreducer();
  const bool across = request.data_path == DataPath::kAcross;
  const AlgorithmWish wish{static_cast<Algorithm>(knobs_.algorithm), static_cast<Switch>(knobs_.hierarchical)};
  const Algorithm algorithm = across ? allreducer.choose_across(data.size()) : allreducer.choose(data.size(), wish);
  const AllreduceJob job{.data = data,
                         .dtype = wire_dtype(request),
                         .op = op,
                         .options = {.algorithm = algorithm, .ring = {.segment_bytes = knobs_.segment_bytes}},
                         .pipeline = staged};
  across ? allreducer.run_across(job) : allreducer.run(job);
  if (staged != nullptr) staged->stage_out_rest();
  log_.communicated(batch, context, begin_ns, data.size(), algorithm);
}

void LinkCollectives::adasum(std::span<const OperationPtr> batch, const BatchContext& context) {
  Operation& operation = *batch.front();
  const Request& request = operation.request();
  const Prepared& prepared = *operation.prepared;
  const std::int64_t copy_ns = now_ns();
  scale_copy(operation.output, operation.input, prepared.count, request.dtype, request.prescale);
  log_.copied(Stage::kCopyIn, operation, context, copy_ns);
  const std::int64_t begin_ns = now_ns();
  adasum_allreduce(context.communicator.mesh(), {operation.output, prepared.bytes}, request.dtype);
  log_.communicated(batch, context, begin_ns, prepared.bytes);
  if (request.postscale == 1.0) return;
  const std::int64_t out_ns = now_ns();
  scale_copy(operation.output, operation.output, prepared.count, request.dtype, request.postscale);
  log_.copied(Stage::kCopyOut, operation, context, out_ns);
}

void LinkCollectives::reducescatter(std::span<const OperationPtr> batch, const BatchContext& context) {
  Operation& operation = *batch.front();
  const Request& request = operation.request();
  Communicator& communicator = context.communicator;
  const auto own = static_cast<std::size_t>(communicator.rank());
  const std::vector<std::size_t> chunks =
      bytes_of_rows(cut_rows(request.shape.front(), communicator.size()), row_bytes_of(request));
  const std::int64_t copy_ns = now_ns();
  const std::span<std::byte> buffer = buffer_.take(operation.prepared->bytes).first(operation.prepared->bytes);
  scale_copy(buffer.data(), operation.input, operation.prepared->count, request.dtype, request.prescale);
  log_.copied(Stage::kCopyIn, operation, context, copy_ns);
  const std::int64_t begin_ns = now_ns();
  const ReduceOp op = wire_op(request.op);
  ring_reducescatter(communicator.ring(), buffer, chunks, request.dtype, op, {.segment_bytes = knobs_.segment_bytes});
  log_.communicated(batch, context, begin_ns, buffer.size());
  const std::int64_t out_ns = now_ns();
  const std::size_t begin = std::accumulate(chunks.begin(), chunks.begin() + communicator.rank(), std::size_t{0});
  scale_copy(operation.output, buffer.data() + begin, chunks[own] / size_of(request.dtype), request.dtype,
             postscale_of(request, communicator.size()));
  log_.copied(Stage::kCopyOut, operation, context, out_ns);
}

void LinkCollectives::allgather(std::span<const OperationPtr> batch, const BatchContext& context) {
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
  log_.copied(Stage::kCopyIn, operation, context, copy_ns);
  const std::int64_t begin_ns = now_ns();
  ring_allgather(context.communicator.ring(), output, blocks.received, {.segment_bytes = knobs_.segment_bytes});
  log_.communicated(batch, context, begin_ns, output.size());
}

void LinkCollectives::alltoall(std::span<const OperationPtr> batch, const BatchContext& context) {
  Operation& operation = *batch.front();
  const std::int64_t begin_ns = now_ns();
  const MemberBytes bytes = agree_on_alltoall(operation, context);
  const std::span<std::byte> output = operation.place_gathered(bytes.all_received());
  ringtune::alltoall(context.communicator.mesh(), {operation.input, operation.prepared->bytes}, bytes.sent, output,
                     bytes.received);
  log_.communicated(batch, context, begin_ns, output.size());
}

void LinkCollectives::broadcast(std::span<const OperationPtr> batch, const BatchContext& context) {
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
  log_.communicated(batch, context, begin_ns, bytes);
}

void LinkCollectives::barrier(std::span<const OperationPtr> batch, const BatchContext& context) {
  const std::int64_t begin_ns = now_ns();
  if (!context.schedule) ring_barrier(context.communicator.ring());  // in a schedule all ranks have voted already
  log_.communicated(batch, context, begin_ns, 0);
}

}  // namespace ringtune
