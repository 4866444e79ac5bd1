// Batches in shared memory: copies in and out are part of the collective, and of its span.
#include <numeric>

#include "base/clock.h"
#include "base/error.h"
#include "collective/reducescatter.h"
#include "fusion/plan.h"
#include "runtime/executor.h"
#include "trace/piece_log.h"

namespace ringtune {
namespace {

constexpr auto kSharedMemory = static_cast<Algorithm>(kSharedMemoryAlgorithm);

}  // namespace

/// Null when the batches of these ranks go over links.
ShmGroup* Executor::shm_group_of(Communicator& communicator) const {
  return knobs_.algorithm != 0 ? nullptr : communicator.shm_group();  // a wish for an algorithm is a wish for links
}

/// Whether the batch is a round in shared memory from begin to end; of others only votes are.
bool Executor::is_shared(std::span<const OperationPtr> batch) noexcept {
  const Request& request = batch.front()->request();
  if (goes_directly(batch)) return false;
  switch (request.kind) {
    case CollectiveKind::kAllreduce:
      return fusible(request);
    case CollectiveKind::kAlltoall:
      return row_bytes_of(request) > 0;  // rows without bytes are counted over links
    default:
      return true;
  }
}

void Executor::post_shared(std::span<const OperationPtr> batch, const BatchContext& context, ShmGroup& shm_group,
                           std::uint64_t token) {
  Operation& first = *batch.front();
  const Request& request = first.request();
  fragments_.clear();
  exchange_ = nullptr;
  const CollectiveKind kind = is_shared(batch) ? request.kind : CollectiveKind::kBarrier;
  if (kind == CollectiveKind::kAllgather || kind == CollectiveKind::kBroadcast) {
    post_exchange(std::make_unique<SharedGather>(shm_group, token, blocks_of(request, context), first.input));
  } else if (kind == CollectiveKind::kAlltoall) {
    fill_in_splits(first, shm_group.size());
    std::vector<std::size_t> sent = bytes_of_rows(first.splits, row_bytes_of(request));
    post_exchange(std::make_unique<SharedAlltoall>(shm_group, token, std::move(sent), first.input));
  } else if (kind == CollectiveKind::kReducescatter) {
    std::vector<std::size_t> parts = bytes_of_rows(cut_rows(request.shape.front(), shm_group.size()),
                                                   row_bytes_of(request) / size_of(request.dtype));
    Scatter scatter{std::move(parts), request.dtype, wire_op(request.op), request.prescale,
                    postscale_of(request, shm_group.size())};
    post_exchange(std::make_unique<SharedReducescatter>(shm_group, token, std::move(scatter), first.input));
  } else {
    if (kind == CollectiveKind::kAllreduce) gather_fragments(batch, shm_group.size());
    round_ = post_allreduce(shm_group, fragments_, {token, request.dtype, wire_op(request.op), request.wire});
  }
  posted_ns_ = tracer_.recording() ? now_ns() : 0;
}

void Executor::post_exchange(std::unique_ptr<SharedExchange> exchange) noexcept {
  exchange_ = exchange.get();
  round_ = std::move(exchange);
}

void Executor::gather_fragments(std::span<const OperationPtr> batch, int size) {
  for (const OperationPtr operation : batch) {
    const Request& request = operation->request();
    fragments_.push_back({operation->input, operation->output, operation->prepared->count, request.prescale,
                          postscale_of(request, size)});
  }
}

/// What each member gives to an allgather, or to a broadcast.
std::vector<std::size_t> Executor::blocks_of(const Request& request, const BatchContext& context) {
  if (request.kind == CollectiveKind::kAllgather) return bytes_of_rows(context.rows, row_bytes_of(request));
  std::vector<std::size_t> blocks(static_cast<std::size_t>(context.communicator.size()));
  blocks[static_cast<std::size_t>(context.communicator.position_of(request.root))] = byte_count(request);
  return blocks;
}

/// Negotiated: the other ranks are on their way.
void Executor::run_shared(std::span<const OperationPtr> batch, const BatchContext& context, ShmGroup& shm_group) {
  const std::int64_t begin_ns = now_ns();
  post_shared(batch, context, shm_group, context.batch_id);
  if (!await_agreement(*round_)) {
    throw Protocol("the ranks do not agree on batch " + std::to_string(context.batch_id));
  }
  if (posted_ns_ > 0) record_await(batch.front()->request(), context, now_ns(), shm_group.awaited_rank());
  (void)finish_shared(batch, context, begin_ns);
}

/// After agreement. When it was done.
std::int64_t Executor::finish_shared(std::span<const OperationPtr> batch, const BatchContext& context,
                                     std::int64_t begin_ns) {
  std::size_t bytes = 0;  // as they travel
  if (exchange_ != nullptr) {
    const std::span<std::byte> output = output_of(*batch.front(), context);
    exchange_->deliver_to(output.data());
    bytes = output.size();
  } else {
    for (const OperationPtr operation : batch) bytes += operation->prepared->wire_bytes;
  }
  round_->finish();
  return record_batch(batch, context, begin_ns, bytes, kSharedMemory);
}

/// Where an exchange's result goes, and how much of it all members have together.
std::span<std::byte> Executor::output_of(Operation& operation, const BatchContext& context) {
  switch (operation.request().kind) {
    case CollectiveKind::kAllgather: {
      tell_rows(operation, context.rows);
      const auto rows = static_cast<std::size_t>(operation.gathered_shape.front());
      return operation.place_gathered(rows * row_bytes_of(operation.request()));
    }
    case CollectiveKind::kAlltoall: {
      const std::vector<std::size_t>& received = static_cast<SharedAlltoall&>(*exchange_).received();
      const std::size_t row_bytes = row_bytes_of(operation.request());
      for (std::size_t member = 0; member < received.size(); ++member) {
        operation.splits[member] = static_cast<std::int64_t>(received[member] / row_bytes);
      }
      tell_rows(operation, operation.splits);
      return operation.place_gathered(std::accumulate(received.begin(), received.end(), std::size_t{0}));
    }
    default:
      return {operation.output, operation.prepared->bytes};
  }
}

void Executor::post_round(std::span<const OperationPtr> batch, const BatchContext& context, std::uint64_t token) {
  ShmGroup* const shm_group = shm_group_of(context.communicator);
  if (shm_group == nullptr) return post_link_round(batch, context, token);
  std::optional<PieceLog> pieces;
  if (pieces_.load(std::memory_order_relaxed)) [[unlikely]]
    pieces.emplace(tracer_, span_of(Stage::kPiece, batch.front()->request(), context));
  post_shared(batch, context, *shm_group, token);
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
    record_await(request, context, agreed_ns, context.communicator.shm_group()->awaited_rank());
    if (pieces_.load(std::memory_order_relaxed)) pieces.emplace(tracer_, span_of(Stage::kPiece, request, context));
  }
  if (is_shared(batch)) return finish_shared(batch, context, agreed_ns);
  round_->finish();  // votes alone
  directly ? launch(batch, context, agreed_ns) : run(batch, context);
  return now_ns();
}

}  // namespace ringtune
