// The paths of tensors in host memory, and which of them the ranks of a process set take.
#pragma once

#include "collective/communicator.h"
#include "fusion/knobs.h"
#include "runtime/link_collectives.h"
#include "runtime/link_path.h"
#include "runtime/shared_memory_path.h"

namespace ringtune {

/// Borrows the log. The driving thread.
class HostPaths {
 public:
  explicit HostPaths(BatchLog& log) noexcept
      : collectives_(log, knobs_), shared_memory_(log, collectives_), links_(log, collectives_, knobs_) {}
  HostPaths(const HostPaths&) = delete;
  HostPaths& operator=(const HostPaths&) = delete;

  void set_knobs(const Knobs& knobs) noexcept { knobs_ = knobs; }
  [[nodiscard]] HostPath& of(Communicator& communicator) {
    return shares_memory(communicator) ? static_cast<HostPath&>(shared_memory_) : links_;
  }
  [[nodiscard]] LinkPath& links() noexcept { return links_; }
  [[nodiscard]] LinkCollectives& collectives() noexcept { return collectives_; }
  /// A wish for an algorithm is a wish for links.
  [[nodiscard]] bool shares_memory(Communicator& communicator) const {
    return knobs_.algorithm == 0 && communicator.shm_group() != nullptr;
  }
  /// The ranks share memory, and another one has posted the next round, so that it waits for this rank.
  [[nodiscard]] bool awaited(Communicator& communicator) const {
    return shares_memory(communicator) && communicator.shm_group()->awaited();
  }

 private:
  Knobs knobs_;
  LinkCollectives collectives_;
  SharedMemoryPath shared_memory_;
  LinkPath links_;
};

}  // namespace ringtune
