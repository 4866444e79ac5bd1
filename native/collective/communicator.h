// One process set as a rank of it sees it: who its members are, and the links between them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "collective/algorithm.h"
#include "collective/allreducer.h"
#include "collective/group.h"
#include "collective/mesh.h"
#include "transport/fabric.h"
#include "transport/shm_group.h"

namespace ringtune {

struct CommunicatorOptions {
  std::string prefix = {};  // of its channels' names: no other communicator of the job ever has the same
  AlgorithmTable table = {};
  std::int64_t connect_timeout_ns = 60'000'000'000;
  std::int64_t idle_timeout_ns = 0;  // no byte moved for that long -> Timeout; 0 = wait for ever
};

/// Borrows the fabric; the links it makes live as long as that, or until close(). One thread at a time. Links are made
/// when they are first needed, in a collective that all members run, in an order that cannot deadlock.
class Communicator {
 public:
  /// `members`: global ranks in ascending order, this rank among them. Connects nothing.
  Communicator(Fabric& fabric, std::vector<int> members, CommunicatorOptions options);

  /// Closes its links; it is not used any more. It has a prefix.
  void close() noexcept { fabric_.close(options_.prefix); }

  [[nodiscard]] int rank() const noexcept { return mesh_.rank(); }  // own position
  [[nodiscard]] int size() const noexcept { return mesh_.size(); }
  [[nodiscard]] const std::vector<int>& members() const noexcept { return members_; }
  /// Position of a global rank; -1 when it is no member.
  [[nodiscard]] int position_of(int rank) const noexcept;

  /// The ring over all members. Blocks the first time; throws Timeout naming the peer, PeerLost.
  [[nodiscard]] const Group& ring();
  /// Pairwise links. Never blocks; Mesh::prepare does.
  [[nodiscard]] Mesh& mesh() noexcept { return mesh_; }
  /// As ring().
  [[nodiscard]] Allreducer& allreducer();
  /// The memory that all members share; null, on all of them, when some do not. As ring().
  [[nodiscard]] ShmGroup* shm_group();

 private:
  [[nodiscard]] std::string why_in_vain(const std::string& waited) const;

  Fabric& fabric_;
  std::vector<int> members_;
  CommunicatorOptions options_;
  Mesh mesh_;
  Group ring_;
  bool ring_connected_ = false;
  std::unique_ptr<Allreducer> allreducer_;
  bool shm_connected_ = false;
  std::shared_ptr<ShmGroup> group_;
};

/// All ranks of a job of this size.
[[nodiscard]] std::vector<int> all_ranks(int size);

/// The ring of these members. Blocks; throws Timeout.
[[nodiscard]] Group connect_ring(Fabric& fabric, const std::vector<int>& members, const std::string& prefix,
                                 Deadline deadline);

}  // namespace ringtune
