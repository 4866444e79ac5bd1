// A batch of a schedule on ranks that do not share memory: the agreement travels with the bytes (collective/agreement
// header.h).
//
// All ranks take part in every round, whatever they vote: one that votes against it sends bytes that mean nothing. So a
// round always comes to its end, with the same answer on all ranks, and the links are free for what follows. Nothing
// is written outside the fusion buffer before that. A tensor alone that is large is not copied into that buffer: for
// it the votes go round first, without bytes, and it is reduced where it lies, as any tensor alone. So do the votes of
// all collectives but a plain allreduce, which are then run as if they had been negotiated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "collective/communicator.h"
#include "control/request.h"
#include "fusion/knobs.h"

namespace ringtune {

/// What all ranks know of a batch in advance.
struct BatchShape {
  std::size_t bytes = 0;  // in the fusion buffer
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  bool votes_first = false;
};
[[nodiscard]] BatchShape shape_of(std::span<const SharedRequest> batch);

struct RoundVote {
  std::uint64_t token = 0;
  bool against = false;
};

/// What this rank contributes, then the result; unused when the votes go first.
struct RoundData {
  std::byte* bytes = nullptr;
  PackPipeline* pipeline = nullptr;  // brings them and takes the results as they come; null: they are there and stay
};

/// Borrows the communicator and the data. One thread at a time.
class LinkRound {
 public:
  /// Connects what is not connected yet: blocks then, and throws as Communicator::allreducer(). The data is not looked
  /// at before advance(), but for a pipeline that is asked for it here.
  LinkRound(Communicator& communicator, const BatchShape& shape, const RoundVote& vote, const Knobs& knobs,
            const RoundData& data);

  /// Moves what can be moved now; true when something was. Never blocks. Throws PeerLost, Protocol.
  bool advance();
  [[nodiscard]] bool done() const { return run_->done(); }
  /// When it is done: whether all ranks voted for it.
  [[nodiscard]] bool agreed() const;
  /// When the votes of all ranks were known here.
  [[nodiscard]] std::int64_t agreed_ns() const noexcept { return agreement_->known_ns(); }
  /// Global ranks whose votes are not known here yet.
  [[nodiscard]] std::vector<int> absent() const;
  /// When it last moved after that; 0 before.
  [[nodiscard]] std::int64_t moved_ns() const noexcept { return moved_ns_; }
  /// What it waits for: the message of a Timeout.
  [[nodiscard]] std::string complaint() const { return run_->complaint(); }
  [[nodiscard]] const BatchShape& shape() const noexcept { return shape_; }
  [[nodiscard]] Algorithm algorithm() const noexcept { return algorithm_; }

 private:
  Communicator& communicator_;
  BatchShape shape_;
  Algorithm algorithm_;
  std::unique_ptr<AgreementHeader> agreement_;
  ActivityPtr run_;
  std::int64_t moved_ns_ = 0;
};

}  // namespace ringtune
