// A round of a shared-memory group in steps, so that a caller need not block until its peers come. One thread at a
// time.
#pragma once

#include <optional>

#include "transport/shm_group.h"

namespace ringtune {

/// The constructor posts the round with its first piece, and blocks no longer than packing that piece takes. Borrows
/// the shared-memory group and its arguments.
class ShmRound {
 public:
  virtual ~ShmRound() = default;
  ShmRound(const ShmRound&) = delete;
  ShmRound& operator=(const ShmRound&) = delete;

  /// Blocks until it is clear whether the round runs, or the deadline (no answer). After false the round is over.
  [[nodiscard]] std::optional<bool> agreed(Deadline deadline) { return group_.agreed(deadline); }
  /// After agreement: exchanges and writes the outputs. Blocks; throws PeerLost, Timeout.
  virtual void finish() = 0;

 protected:
  explicit ShmRound(ShmGroup& shm_group) : group_(shm_group) {}

  ShmGroup& group_;
};

/// Blocks until all have posted the round; false, for all of them, when one declined it or came with another token.
[[nodiscard]] inline bool await_agreement(ShmRound& round) {
  std::optional<bool> agreed;
  while (!agreed) agreed = round.agreed(Deadline::never());
  return *agreed;
}

}  // namespace ringtune
