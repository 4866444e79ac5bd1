// A job's negotiation without a job: the negotiators of all ranks in one thread, every message written and read as it
// would be on a link. Shows what the control plane costs with more ranks than there are machines for.
#pragma once

#include <cstdint>

#include "control/tree.h"

namespace ringtune {

struct RehearsalOptions {
  int ranks = 2;
  int tensors = 32;  // in a cycle
  int cycles = 10;   // measured; of new tensors, which all ranks remember, three at most
  int fan_out = kDefaultFanOut;
};

/// What a rank does in one cycle: messages and bytes sent and received, and time of one core.
struct RehearsalLoad {
  double messages = 0;
  double bytes = 0;
  double ns = 0;  // the fastest cycle: the work without what else the machine did
};

struct RehearsalPhase {
  RehearsalLoad coordinator;  // rank 0 with all it does
  RehearsalLoad busiest;      // of the other ranks, each figure by itself
  RehearsalLoad mean;         // of all ranks
  double all_messages = 0;    // on all links together
  double all_bytes = 0;
};

struct Rehearsal {
  RehearsalPhase cold;    // tensors that nobody has seen before
  RehearsalPhase cached;  // known ones, by number
  RehearsalPhase steady;  // within a plan
};

/// Blocks; no other thread, no socket. Throws InvalidArgument, and InvariantError when a rank did not run every tensor.
[[nodiscard]] Rehearsal rehearse(const RehearsalOptions& options);

}  // namespace ringtune
