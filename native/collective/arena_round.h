// A round of an arena in steps, so that a caller need not block until its peers come. One thread at a time.
#pragma once

#include <optional>

#include "transport/arena.h"

namespace ringtune {

/// Posted when it is made, with the first piece, which blocks no longer than it takes to pack that. Borrows the arena
/// and what it was given.
class ArenaRound {
 public:
  virtual ~ArenaRound() = default;
  ArenaRound(const ArenaRound&) = delete;
  ArenaRound& operator=(const ArenaRound&) = delete;

  /// Blocks until it is clear whether the round runs, or the deadline (no answer). After false the round is over.
  [[nodiscard]] std::optional<bool> agreed(Deadline deadline) { return arena_.agreed(deadline); }
  /// After agreement: exchanges and writes the outputs. Blocks; throws PeerLost, Timeout.
  virtual void finish() = 0;

 protected:
  explicit ArenaRound(Arena& arena) : arena_(arena) {}

  Arena& arena_;
};

/// Blocks until all have posted the round; false, for all of them, when one declined it or came with another token.
[[nodiscard]] inline bool await_agreement(ArenaRound& round) {
  std::optional<bool> agreed;
  while (!agreed) agreed = round.agreed(Deadline::never());
  return *agreed;
}

}  // namespace ringtune
