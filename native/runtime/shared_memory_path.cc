#include "runtime/shared_memory_path.h"

#include <numeric>

#include "base/clock.h"
#include "base/error.h"
#include "collective/reducescatter.h"
#include "fusion/plan.h"
#include "runtime/rows.h"

namespace ringtune {
namespace {

constexpr auto kSharedMemory = static_cast<Algorithm>(kSharedMemoryAlgorithm);

/// Whether the batch is a round in shared memory from begin to end; of others only votes are.
bool is_shared(std::span<const OperationPtr> batch) noexcept {
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

/// What each member gives to an allgather, or to a broadcast.
std::vector<std::size_t> blocks_of(const Request& request, const BatchContext& context) {
  if (request.kind == CollectiveKind::kAllgather) return bytes_of_rows(context.rows, row_bytes_of(request));
  std::vector<std::size_t> blocks(static_cast<std::size_t>(context.communicator.size()));
  blocks[static_cast<std::size_t>(context.communicator.position_of(request.root))] = byte_count(request);
  return blocks;
}

}  // namespace

void SharedMemoryPath::begin_round(std::span<const OperationPtr> batch, const BatchContext& context,
                                   std::uint64_t token) {
  ShmGroup& shm_group = *context.communicator.shm_group();
  Operation& first = *batch.front();
  const Request& request = first.request();
  fragments_.clear();
  exchange_ = nullptr;
  const CollectiveKind kind = is_shared(batch) ? request.kind : CollectiveKind::kBarrier;
  if (kind == CollectiveKind::kAllgather || kind == CollectiveKind::kBroadcast) {
    begin_exchange(std::make_unique<SharedGather>(shm_group, token, blocks_of(request, context), first.input));
  } else if (kind == CollectiveKind::kAlltoall) {
    fill_in_splits(first, shm_group.size());
    std::vector<std::size_t> sent = bytes_of_rows(first.splits, row_bytes_of(request));
    begin_exchange(std::make_unique<SharedAlltoall>(shm_group, token, std::move(sent), first.input));
  } else if (kind == CollectiveKind::kReducescatter) {
    std::vector<std::size_t> parts = bytes_of_rows(cut_rows(request.shape.front(), shm_group.size()),
                                                   row_bytes_of(request) / size_of(request.dtype));
    Scatter scatter{std::move(parts), request.dtype, wire_op(request.op), request.prescale,
                    postscale_of(request, shm_group.size())};
    begin_exchange(std::make_unique<SharedReducescatter>(shm_group, token, std::move(scatter), first.input));
  } else {
    if (kind == CollectiveKind::kAllreduce) gather_fragments(batch, shm_group.size());
    round_ = post_allreduce(shm_group, fragments_, {token, request.dtype, wire_op(request.op), request.wire});
  }
  posted_ns_ = log_.tracer().recording() ? now_ns() : 0;
}

void SharedMemoryPath::begin_exchange(std::unique_ptr<SharedExchange> exchange) noexcept {
  exchange_ = exchange.get();
  round_ = std::move(exchange);
}

void SharedMemoryPath::gather_fragments(std::span<const OperationPtr> batch, int size) {
  for (const OperationPtr operation : batch) {
    const Request& request = operation->request();
    fragments_.push_back({operation->input, operation->output, operation->prepared->count, request.prescale,
                          postscale_of(request, size)});
  }
}

void SharedMemoryPath::run(std::span<const OperationPtr> batch, const BatchContext& context) {
  log_.start(batch, context, now_ns());
  const Request& request = batch.front()->request();
  const BatchPieces pieces(log_, request, context);
  if (!is_shared(batch)) return collectives_.run(batch, context);
  const std::int64_t begin_ns = now_ns();
  begin_round(batch, context, context.batch_id);
  if (!await_agreement(*round_)) {
    throw Protocol("the ranks do not agree on batch " + std::to_string(context.batch_id));
  }
  if (posted_ns_ > 0) {
    log_.awaited(request, context, posted_ns_, now_ns(), context.communicator.shm_group()->awaited_rank());
  }
  (void)end_round(batch, context, begin_ns);
}

/// After agreement. When it was done.
std::int64_t SharedMemoryPath::end_round(std::span<const OperationPtr> batch, const BatchContext& context,
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
  return log_.communicated(batch, context, begin_ns, bytes, kSharedMemory);
}

/// Where an exchange's result goes, and how much of it all members have together.
std::span<std::byte> SharedMemoryPath::output_of(Operation& operation, const BatchContext& context) {
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

void SharedMemoryPath::post(std::span<const OperationPtr> batch, const BatchContext& context, std::uint64_t token) {
  const BatchPieces pieces(log_, batch.front()->request(), context);
  begin_round(batch, context, token);
}

/// Without a negotiation the wait is what a late rank costs: the batch was ready here.
void SharedMemoryPath::note_agreed(std::span<const OperationPtr> batch, const BatchContext& context,
                                   std::int64_t agreed_ns) {
  for (const OperationPtr operation : batch) operation->agreed_ns = agreed_ns;
  if (posted_ns_ == 0) return;
  log_.awaited(batch.front()->request(), context, posted_ns_, agreed_ns,
               context.communicator.shm_group()->awaited_rank());
}

std::int64_t SharedMemoryPath::finish(std::span<const OperationPtr> batch, const BatchContext& context,
                                      std::int64_t agreed_ns) {
  note_agreed(batch, context, agreed_ns);
  log_.start(batch, context, agreed_ns);
  const BatchPieces pieces(log_, batch.front()->request(), context);
  if (is_shared(batch)) return end_round(batch, context, agreed_ns);
  round_->finish();  // votes alone
  collectives_.run(batch, context);
  return now_ns();
}

std::int64_t SharedMemoryPath::take_votes(std::span<const OperationPtr> batch, const BatchContext& context,
                                          std::int64_t agreed_ns) {
  note_agreed(batch, context, agreed_ns);
  round_->finish();
  return agreed_ns;
}

void SharedMemoryPath::decline(const DeclineAction& /*round*/, Communicator& communicator) {
  communicator.shm_group()->decline_round();
}

std::vector<int> SharedMemoryPath::absent(Communicator& communicator) const {
  std::vector<int> ranks;
  for (const int position : communicator.shm_group()->absent()) {
    ranks.push_back(communicator.members()[static_cast<std::size_t>(position)]);
  }
  return ranks;
}

}  // namespace ringtune
