// Links from one rank to every other of its group, made when they are first needed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "transport/fabric.h"

namespace ringtune {

struct MeshOptions {
  std::string channel = "mesh";  // name of the links; one mesh for each name and pair of ranks
  std::int64_t connect_timeout_ns = 60'000'000'000;
  std::int64_t idle_timeout_ns = 0;  // no byte moved for that long -> Timeout; 0 = wait for ever
};

/// Borrows the fabric. One thread at a time.
class Mesh {
 public:
  /// `members`: global ranks by position, this rank among them. Connects nothing.
  Mesh(Fabric& fabric, std::vector<int> members, MeshOptions options);

  [[nodiscard]] int rank() const noexcept { return rank_; }  // own position
  [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
  [[nodiscard]] Waker& waker() const noexcept { return fabric_.waker(); }
  [[nodiscard]] std::int64_t idle_timeout_ns() const noexcept { return options_.idle_timeout_ns; }

  /// Connects to those `peers` (positions) that are not connected. All ranks of the group prepare for the same
  /// collective, so both ends of a link ask for it. Blocks; throws Timeout, PeerLost.
  void prepare(std::span<const int> peers);
  /// A link that was prepared.
  [[nodiscard]] Link& link(int peer) const;

 private:
  Fabric& fabric_;
  std::vector<int> members_;
  MeshOptions options_;
  int rank_;
  std::vector<Link*> links_;  // by position; owned by the fabric
};

}  // namespace ringtune
