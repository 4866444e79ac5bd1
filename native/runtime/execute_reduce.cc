// Allreduce of a batch.
#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "device/cpu_kernels.h"
#include "fusion/plan.h"
#include "runtime/executor.h"
#include "trace/piece_log.h"

namespace ringtune {

void Executor::allreduce(std::span<const OperationPtr> batch, const BatchContext& context) {
  if (Arena* const arena = arena_of(context.communicator)) {
    allreduce_shared(batch, context, *arena);
  } else if (batch.size() == 1 && !batch.front()->request().wire) {
    allreduce_one(batch, context);
  } else {
    allreduce_fused(batch, context);
  }
}

/// Null when the batches of these ranks go over links.
Arena* Executor::arena_of(Communicator& communicator) const {
  return knobs_.algorithm != 0 ? nullptr : communicator.arena();  // a wish for an algorithm is a wish for links
}

namespace {

constexpr auto kSharedMemory = static_cast<Algorithm>(kSharedMemoryAlgorithm);

/// As they travel.
std::size_t byte_sum(std::span<const OperationPtr> batch) noexcept {
  std::size_t bytes = 0;
  for (const OperationPtr operation : batch) bytes += operation->prepared->wire_bytes;
  return bytes;
}

bool worth_staging(std::size_t bytes, const Communicator& communicator) noexcept {
  return communicator.size() > 1 && bytes >= BatchCopies::kWorthStaging;
}

SharedRound round_of(const Request& request, std::uint64_t token) noexcept {
  return {token, request.dtype, request.op == ReduceOp::kAverage ? ReduceOp::kSum : request.op, request.wire};
}

}  // namespace

void Executor::gather_fragments(std::span<const OperationPtr> batch, int size) {
  fragments_.clear();
  if (goes_directly(batch) || !fusible(batch.front()->request())) return;  // only votes go through shared memory
  for (const OperationPtr operation : batch) {
    const Request& request = operation->request();
    fragments_.push_back({operation->input, operation->output, operation->prepared->count, request.prescale,
                          postscale_of(request, size)});
  }
}

/// One pass without a fusion buffer: copies in and out are part of the reduction, and of its span.
void Executor::allreduce_shared(std::span<const OperationPtr> batch, const BatchContext& context, Arena& arena) {
  const std::int64_t begin_ns = now_ns();
  gather_fragments(batch, arena.size());
  const Request& request = batch.front()->request();
  SharedAllreduce round(arena, fragments_, round_of(request, context.batch_id));
  posted_ns_ = tracer_.recording() ? now_ns() : 0;
  std::optional<bool> agreed;
  while (!agreed) agreed = round.agreed(Deadline::never());
  if (!*agreed) throw Protocol("the ranks do not agree on batch " + std::to_string(context.batch_id));
  if (posted_ns_ > 0) record_await(request, context, now_ns(), arena.awaited_rank());
  round.finish();
  record_batch(batch, context, begin_ns, byte_sum(batch), kSharedMemory);
}

void Executor::post_round(std::span<const OperationPtr> batch, const BatchContext& context, std::uint64_t token) {
  Arena* const arena = arena_of(context.communicator);
  if (arena == nullptr) return post_link_round(batch, context, token);
  gather_fragments(batch, arena->size());
  const Request& request = batch.front()->request();
  std::optional<PieceLog> pieces;
  if (pieces_.load(std::memory_order_relaxed)) [[unlikely]]
    pieces.emplace(tracer_, span_of(Stage::kPiece, request, context));
  round_.emplace(*arena, fragments_, round_of(request, token));
  posted_ns_ = tracer_.recording() ? now_ns() : 0;
}

std::int64_t Executor::finish_round(std::span<const OperationPtr> batch, const BatchContext& context,
                                    std::int64_t agreed_ns) {
  if (link_round_) return finish_link_round(batch, context);
  for (const OperationPtr operation : batch) operation->agreed_ns = agreed_ns;
  const Request& request = batch.front()->request();
  const bool directly = goes_directly(batch);
  if (!directly) record_start(batch, context, agreed_ns);
  std::optional<PieceLog> pieces;
  if (tracer_.recording()) [[unlikely]] {
    // Without a negotiation this is what a late rank costs: the batch was ready here.
    record_await(request, context, agreed_ns, context.communicator.arena()->awaited_rank());
    if (pieces_.load(std::memory_order_relaxed)) pieces.emplace(tracer_, span_of(Stage::kPiece, request, context));
  }
  round_->finish();
  if (fusible(request) && !directly) return record_batch(batch, context, agreed_ns, byte_sum(batch), kSharedMemory);
  directly ? launch(batch, context, agreed_ns) : run(batch, context);
  return now_ns();
}

/// The slices of tensors that go by NCCL within hosts, which are in host memory between the two stages there.
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
  const ReduceOp op = request.op == ReduceOp::kAverage ? ReduceOp::kSum : request.op;
  const std::int64_t begin_ns = now_ns();
  Allreducer& allreducer = context.communicator.allreducer();
  const bool across = request.way == Way::kAcross;
  const AlgorithmWish wish{static_cast<Algorithm>(knobs_.algorithm), static_cast<Switch>(knobs_.hierarchical)};
  const Algorithm algorithm = across ? allreducer.choose_across(data.size()) : allreducer.choose(data.size(), wish);
  const AllreduceJob job{.data = data,
                         .dtype = wire_dtype(request),
                         .op = op,
                         .options = {.algorithm = algorithm, .ring = {.segment_bytes = knobs_.segment_bytes}},
                         .stager = staged};
  across ? allreducer.run_across(job) : allreducer.run(job);
  if (staged != nullptr) staged->stage_out_rest();
  record_batch(batch, context, begin_ns, data.size(), algorithm);
}

}  // namespace ringtune
