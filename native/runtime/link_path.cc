#include "runtime/link_path.h"

#include "base/check.h"
#include "base/clock.h"

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

void LinkPath::run(std::span<const OperationPtr> batch, const BatchContext& context) {
  log_.start(batch, context, now_ns());
  const BatchPieces pieces(log_, batch.front()->request(), context);
  collectives_.run(batch, context);
}

void LinkPath::prepare(std::span<const SharedRequest> batch, Communicator& communicator) {
  RINGTUNE_CHECK(drained(), "a schedule begins while a declined round is under way");
  (void)LinkRound(communicator, shape_of(batch), {}, knobs_, {});  // its links stay
}

void LinkPath::post(std::span<const OperationPtr> batch, const BatchContext& context, std::uint64_t token) {
  RINGTUNE_CHECK(drained(), "a round is posted while a declined one is under way");
  const BatchShape shape = shape_of(requests_of(batch));
  pieces_.reset();
  if (log_.pieces()) [[unlikely]]
    pieces_ = span_of(Stage::kPiece, batch.front()->request(), context);
  staged_ = !shape.votes_first && collectives_.lay_out(batch, context);
  if (!shape.votes_first && !staged_) collectives_.copy_all(Stage::kCopyIn, context);
  BatchCopies& copies = collectives_.copies();
  const RoundData data{shape.votes_first ? nullptr : copies.buffer().data(), staged_ ? &copies : nullptr};
  round_.emplace(context.communicator, shape, RoundVote{token, false}, knobs_, data);
  posted_ns_ = log_.tracer().recording() ? now_ns() : 0;
  awaited_ = -1;
  advance();
}

void LinkPath::advance() {
  std::optional<PieceLog> pieces;
  if (pieces_) [[unlikely]]
    pieces.emplace(log_.tracer(), *pieces_);
  (void)round_->advance();
}

std::optional<bool> LinkPath::agreed(Deadline /*deadline*/) {
  advance();
  if (!round_->done()) {
    if (posted_ns_ > 0) {
      if (const std::vector<int> absent = round_->absent(); !absent.empty()) awaited_ = absent.back();
    }
    return std::nullopt;
  }
  const bool agreed = round_->agreed();
  if (!agreed) round_.reset();
  return agreed;
}

std::int64_t LinkPath::finish(std::span<const OperationPtr> batch, const BatchContext& context,
                              std::int64_t agreed_ns) {
  const BatchShape shape = round_->shape();
  const Algorithm algorithm = round_->algorithm();
  const std::int64_t begin_ns = take_votes(batch, context, agreed_ns);
  log_.start(batch, context, begin_ns);
  if (shape.votes_first) {
    collectives_.run(batch, context);
    return now_ns();
  }
  if (staged_) collectives_.copies().stage_out_rest();
  log_.communicated(batch, context, begin_ns, shape.bytes, algorithm);
  if (!staged_) collectives_.copy_all(Stage::kCopyOut, context);
  return now_ns();
}

std::int64_t LinkPath::take_votes(std::span<const OperationPtr> batch, const BatchContext& context,
                                  std::int64_t /*agreed_ns*/) {
  const std::int64_t agreed_ns = round_->agreed_ns();  // the votes may have been known here before
  round_.reset();
  for (const OperationPtr operation : batch) operation->agreed_ns = agreed_ns;
  log_.awaited(batch.front()->request(), context, posted_ns_, agreed_ns, awaited_);
  return agreed_ns;
}

void LinkPath::decline(const DeclineAction& round, Communicator& communicator) {
  RINGTUNE_CHECK(!round_, "a round is declined while another one is posted");
  const BatchShape shape = shape_of(round.batch);
  std::unique_ptr<std::byte[]> data;
  // Zeros: nothing of this process that is not meant to travel does.
  if (!shape.votes_first) data = std::make_unique<std::byte[]>(shape.bytes);
  std::byte* const address = data.get();
  declined_.push_back(
      {std::move(data), LinkRound(communicator, shape, RoundVote{round.token, true}, knobs_, {address})});
  (void)advance_declined();
}

bool LinkPath::advance_declined() {
  bool moved = false;
  for (Declined& declined : declined_) moved = declined.round.advance() || moved;
  return declined_.remove_if([](const Declined& declined) { return declined.round.done(); }) > 0 || moved;
}

}  // namespace ringtune
