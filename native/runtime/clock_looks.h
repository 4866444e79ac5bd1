// Looks at rank 0's clock: a burst of messages there and back gives the offset of this host's clock, which goes into
// the timeline as a CLOCK event.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"
#include "control/messages.h"
#include "runtime/clock_sync.h"
#include "runtime/control_plane.h"
#include "runtime/engine_status.h"
#include "trace/tracer.h"

namespace ringtune {

/// Borrows the fabric, the control links, the tracer and the status. For the driving thread but where said.
class ClockLooks {
 public:
  /// `control`: null in a job of one.
  ClockLooks(Fabric& fabric, ControlPlane* control, Tracer& tracer, EngineStatus& status);

  /// So many have been asked for by now (Mailbox): begins one, if these are more than before.
  void wanted(std::uint32_t looks);
  /// A message of a burst: a question on rank 0, elsewhere its answer.
  void take(const ClockPing& ping, int from);
  /// Begins one if the last is some time ago: the line through them needs some at the beginning, few later. Nothing
  /// while nothing is recorded, and on rank 0's host.
  void look_again();
  /// Any thread. Blocks until the look of that number has been recorded, or the deadline.
  void wait_for(std::uint32_t number, Deadline deadline) const;

 private:
  void begin();
  void ask();
  void record(const ClockSample& sample);

  ControlPlane* control_;
  Tracer& tracer_;
  EngineStatus& status_;
  const int rank_;
  bool shares_clock_;  // same host as rank 0
  ClockSync sync_;
  std::int64_t last_ns_ = 0;
  std::int64_t interval_ns_ = 250'000'000;  // grows: see look_again()
  std::uint32_t wanted_ = 0;
  std::atomic<std::uint32_t> recorded_{0};  // futex word: looks; release/acquire: the event was handed to the tracer
};

}  // namespace ringtune
