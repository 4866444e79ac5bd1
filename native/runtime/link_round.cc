#include "runtime/link_round.h"

#include "base/check.h"
#include "base/clock.h"
#include "fusion/plan.h"

namespace ringtune {
namespace {

// From here on two copies cost more than a round trip of votes.
constexpr std::size_t kVotesFirstBytes = 1 << 20;

}  // namespace

BatchShape shape_of(std::span<const SharedRequest> batch) {
  RINGTUNE_CHECK(!batch.empty());
  const Request& first = *batch.front();
  if (first.data_path != DataPath::kStaged || !fusible(first))
    return {.votes_first = true};  // nothing else is in the round
  BatchShape shape{.dtype = wire_dtype(first), .op = wire_op(first.op)};
  for (const SharedRequest& request : batch) shape.bytes += fused_size(wire_byte_count(*request));
  // One that travels as another dtype is copied anyway.
  shape.votes_first = batch.size() == 1 && !first.wire && shape.bytes >= kVotesFirstBytes;
  return shape;
}

LinkRound::LinkRound(Communicator& communicator, const BatchShape& shape, const RoundVote& vote, const Knobs& knobs,
                     const RoundData& data)
    : communicator_(communicator),
      shape_(shape),
      agreement_(
          std::make_unique<AgreementHeader>(vote.token, communicator.rank(), communicator.size(), vote.against)) {
  Allreducer& allreducer = communicator.allreducer();
  algorithm_ = allreducer.choose(shape.bytes,
                                 {static_cast<Algorithm>(knobs.algorithm), static_cast<Switch>(knobs.hierarchical)});
  run_ = allreducer.start({.data = {data.bytes, shape.votes_first ? 0 : shape.bytes},
                           .dtype = shape.dtype,
                           .op = shape.op,
                           .options = {.algorithm = algorithm_, .ring = {.segment_bytes = knobs.segment_bytes}},
                           .agreement = agreement_.get(),
                           .pipeline = data.pipeline});
}

bool LinkRound::advance() {
  bool moved = false;
  while (!run_->done() && run_->advance()) moved = true;
  if (moved && !run_->done() && agreed_ns() != 0) moved_ns_ = now_ns();
  return moved;
}

bool LinkRound::agreed() const {
  RINGTUNE_CHECK(run_->done() && agreement_->known_ns() != 0, "a round is over and not all votes are known");
  return !agreement_->against();
}

std::vector<int> LinkRound::absent() const {
  std::vector<int> ranks;
  for (const int position : agreement_->missing()) {
    ranks.push_back(communicator_.members()[static_cast<std::size_t>(position)]);
  }
  return ranks;
}

}  // namespace ringtune
