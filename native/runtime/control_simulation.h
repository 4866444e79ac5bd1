// A job's negotiation without a job: the negotiators of all ranks in one thread, every message written and read as it
// would be on a link. Shows what the control plane costs with more ranks than there are machines for.
#pragma once

#include <cstdint>

#include "control/tree.h"

namespace ringtune {

struct SimulationOptions {
  int ranks = 2;
  int tensors = 32;  // in a cycle
  int cycles = 10;   // measured; of new tensors, which all ranks cache, three at most
  int fan_out = kDefaultFanOut;
};

/// What a rank does in one cycle: messages and bytes sent and received, and time of one core.
struct SimulationLoad {
  double messages = 0;
  double bytes = 0;
  double ns = 0;  // the fastest cycle: the work without what else the machine did
};

struct SimulationPhase {
  SimulationLoad coordinator;  // rank 0 with all it does
  SimulationLoad busiest;      // of the other ranks, each figure by itself
  SimulationLoad mean;         // of all ranks
  double all_messages = 0;     // on all links together
  double all_bytes = 0;
};

struct ControlSimulation {
  SimulationPhase cold;    // tensors that nobody has seen before
  SimulationPhase cached;  // known ones, by number
  SimulationPhase steady;  // within a schedule
};

/// Blocks; no other thread, no socket. Throws InvalidArgument, and InvariantError when a rank did not run every tensor.
[[nodiscard]] ControlSimulation simulate_control(const SimulationOptions& options);

}  // namespace ringtune
