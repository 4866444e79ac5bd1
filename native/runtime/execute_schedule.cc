// Batches of a schedule on ranks that do not share memory.
#include "base/check.h"
#include "base/clock.h"
#include "runtime/executor.h"
#include "trace/piece_log.h"

namespace ringtune {
namespace {

std::vector<SharedRequest> requests_of(std::span<const OperationPtr> batch) {
  std::vector<SharedRequest> requests;
  for (const OperationPtr operation : batch) {
    requests.emplace_back(operation->prepared, &operation->prepared->request);
  }
  return requests;
}

}  // namespace

void Executor::prepare_batch(std::span<const SharedRequest> batch, Communicator& communicator) {
  RINGTUNE_CHECK(drained(), "a schedule begins while a declined round is under way");
  if (shm_group_of(communicator) != nullptr) return;
  (void)LinkRound(communicator, shape_of(batch), {}, knobs_, {});  // its links stay
}

void Executor::post_link_round(std::span<const OperationPtr> batch, const BatchContext& context, std::uint64_t token) {
  RINGTUNE_CHECK(drained(), "a round is posted while a declined one is under way");
  round_.reset();
  const BatchShape shape = shape_of(requests_of(batch));
  round_pieces_.reset();
  if (pieces_.load(std::memory_order_relaxed)) [[unlikely]]
    round_pieces_ = span_of(Stage::kPiece, batch.front()->request(), context);
  round_staged_ = !shape.votes_first && lay_out(batch, context);
  if (!shape.votes_first && !round_staged_) copy_all(Stage::kCopyIn, context);
  const RoundData data{shape.votes_first ? nullptr : copies_.buffer().data(), round_staged_ ? &copies_ : nullptr};
  link_round_.emplace(context.communicator, shape, RoundVote{token, false}, knobs_, data);
  posted_ns_ = tracer_.recording() ? now_ns() : 0;
  link_awaited_ = -1;
  (void)advance_link_round();
}

bool Executor::advance_link_round() {
  std::optional<PieceLog> pieces;
  if (round_pieces_) [[unlikely]]
    pieces.emplace(tracer_, *round_pieces_);
  return link_round_->advance();
}

std::optional<bool> Executor::link_round_agreed() {
  (void)advance_link_round();
  if (!link_round_->done()) {
    if (posted_ns_ > 0) {
      if (const std::vector<int> absent = link_round_->absent(); !absent.empty()) link_awaited_ = absent.back();
    }
    return std::nullopt;
  }
  const bool agreed = link_round_->agreed();
  if (!agreed) link_round_.reset();
  return agreed;
}

std::int64_t Executor::finish_link_round(std::span<const OperationPtr> batch, const BatchContext& context) {
  const std::int64_t begin_ns = link_round_->agreed_ns();
  const BatchShape shape = link_round_->shape();
  const Algorithm algorithm = link_round_->algorithm();
  link_round_.reset();
  for (const OperationPtr operation : batch) operation->agreed_ns = begin_ns;
  const bool directly = goes_directly(batch);
  if (!directly) record_start(batch, context, begin_ns);
  if (tracer_.recording()) record_await(batch.front()->request(), context, begin_ns, link_awaited_);
  if (directly) {
    launch(batch, context, begin_ns);
    return now_ns();
  }
  if (shape.votes_first) {
    run(batch, context);
    return now_ns();
  }
  if (round_staged_) copies_.stage_out_rest();
  record_batch(batch, context, begin_ns, shape.bytes, algorithm);
  if (!round_staged_) copy_all(Stage::kCopyOut, context);
  return now_ns();
}

void Executor::decline_round(const DeclineAction& round, Communicator& communicator) {
  if (ShmGroup* const shm_group = shm_group_of(communicator)) {
    shm_group->decline_round();
    return;
  }
  RINGTUNE_CHECK(!link_round_, "a round is declined while another one is posted");
  const BatchShape shape = shape_of(round.batch);
  std::unique_ptr<std::byte[]> data;
  // Zeros: nothing of this process that is not meant to travel does.
  if (!shape.votes_first) data = std::make_unique<std::byte[]>(shape.bytes);
  std::byte* const address = data.get();
  declined_.push_back(
      {std::move(data), LinkRound(communicator, shape, RoundVote{round.token, true}, knobs_, {address})});
  (void)advance_declined();
}

bool Executor::advance_declined() {
  bool moved = false;
  for (Declined& declined : declined_) moved = declined.round.advance() || moved;
  return declined_.remove_if([](const Declined& declined) { return declined.round.done(); }) > 0 || moved;
}

std::vector<int> Executor::absent_in_round(Communicator& communicator) const {
  if (link_round_) return link_round_->absent();
  std::vector<int> ranks;
  for (const int position : communicator.shm_group()->absent()) {
    ranks.push_back(communicator.members()[static_cast<std::size_t>(position)]);
  }
  return ranks;
}

}  // namespace ringtune
