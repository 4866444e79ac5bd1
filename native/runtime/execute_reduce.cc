// Reductions of a batch over links: allreduce, Adasum and reducescatter.
#include <numeric>

#include "base/clock.h"
#include "collective/adasum.h"
#include "collective/reducescatter.h"
#include "device/cpu_kernels.h"
#include "fusion/plan.h"
#include "runtime/executor.h"

namespace ringtune {

void Executor::allreduce(std::span<const OperationPtr> batch, const BatchContext& context) {
  if (batch.size() == 1 && !batch.front()->request().wire) {
    allreduce_one(batch, context);
  } else {
    allreduce_fused(batch, context);
  }
}

namespace {

bool worth_staging(std::size_t bytes, const Communicator& communicator) noexcept {
  return communicator.size() > 1 && bytes >= BatchCopies::kWorthStaging;
}

}  // namespace

/// Slices of tensors on the path of NCCL within hosts, which lie in host memory between the two stages of NCCL.
void Executor::allreduce_across(std::span<const OperationPtr> batch, const BatchContext& context) {
  batch.size() == 1 ? allreduce_one(batch, context) : allreduce_fused(batch, context);
}

/// A tensor alone that travels as it is needs no fusion buffer: it is reduced where its result belongs.
void Executor::allreduce_one(std::span<const OperationPtr> batch, const BatchContext& context) {
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
    record(Stage::kCopyIn, operation, context, begin_ns);
  }
  reduce(data, batch, context, nullptr);
  if (scales) {
    const std::int64_t begin_ns = now_ns();
    copies_.copy_out(0);
    record(Stage::kCopyOut, operation, context, begin_ns);
  }
}

/// Tensors that travel as another dtype are cast by the copies.
void Executor::allreduce_fused(std::span<const OperationPtr> batch, const BatchContext& context) {
  const bool staged = lay_out(batch, context);
  if (!staged) copy_all(Stage::kCopyIn, context);
  reduce(copies_.buffer(), batch, context, staged ? &copies_ : nullptr);
  if (!staged) copy_all(Stage::kCopyOut, context);
}

/// Gives the tensors their places in the fusion buffer. Whether they are copied as the collective asks for them.
bool Executor::lay_out(std::span<const OperationPtr> batch, const BatchContext& context) {
  const std::size_t bytes = copies_.lay_out(batch, context.communicator.size());
  copies_.use(buffer_.take(bytes));
  return worth_staging(bytes, context.communicator);
}

/// All tensors into the fusion buffer or out of it, one after another.
void Executor::copy_all(Stage stage, const BatchContext& context) {
  begin_copies(stage, copies_.operation(0).request(), context);
  for (std::size_t i = 0; i < copies_.tensors(); ++i) {
    stage == Stage::kCopyIn ? copies_.copy_in(i) : copies_.copy_out(i);
    copied(copies_.operation(i));
  }
  end_copies();
}

void Executor::reduce(std::span<std::byte> data, std::span<const OperationPtr> batch, const BatchContext& context,
                      BatchCopies* staged) {
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
  record_batch(batch, context, begin_ns, data.size(), algorithm);
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
