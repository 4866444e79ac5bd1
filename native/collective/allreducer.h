// The allreduce of one group over links: owns the links of all algorithms and knows which one to take.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "collective/algorithm.h"
#include "collective/allreduce.h"
#include "collective/collectives.h"
#include "collective/host_layout.h"
#include "collective/mesh.h"

namespace ringtune {

enum class Switch : std::uint8_t { kAuto = 0, kOn = 1, kOff = 2 };

/// What the knobs say about the choice. The same on all ranks.
struct AlgorithmWish {
  Algorithm algorithm = Algorithm::kTable;
  Switch hierarchical = Switch::kAuto;  // kAuto: where hosts hold several ranks of the group
};

struct AllreducerOptions {
  MeshOptions mesh;
  AlgorithmTable table;
  // By levels, what a host does within itself and what crosses hosts go side by side, in blocks: so many at most, of so
  // many bytes at least, and so many that travel as one message between hosts.
  std::size_t most_blocks = 16;
  std::size_t block_bytes = 4 << 20;
  std::size_t message_bytes = 256 << 10;
};

/// Borrows the fabric and copies the ring. One thread at a time. Links are made at their first use, by all ranks alike.
class Allreducer {
 public:
  /// `members`: global ranks by position, this one among them; `ring` is the ring over them.
  Allreducer(Fabric& fabric, const std::vector<int>& members, const Group& ring, AllreducerOptions options);

  /// Never kTable. Pure: every rank of the group comes to the same.
  [[nodiscard]] Algorithm choose(std::size_t bytes, const AlgorithmWish& wish) const noexcept;
  /// As start_allreduce, by any algorithm but kTable. The activity borrows this object.
  [[nodiscard]] ActivityPtr start(const AllreduceJob& job);
  /// The same from begin to end. Blocks; throws PeerLost, Timeout.
  void run(const AllreduceJob& job);

  /// Among those that have this rank's place on their hosts, of a group that has_slices(): each such circle of ranks
  /// reduces data of its own. Else as run(); the job's algorithm is no matter.
  void run_across(const AllreduceJob& job);
  /// The one that run_across takes.
  [[nodiscard]] Algorithm choose_across(std::size_t bytes) const noexcept;
  [[nodiscard]] bool has_slices() const noexcept { return cross_ != nullptr; }
  [[nodiscard]] int hosts() const noexcept { return layout_.hosts(); }

 private:
  [[nodiscard]] ActivityPtr start_leaders(const AllreduceJob& job);
  [[nodiscard]] ActivityPtr start_slices(const AllreduceJob& job);
  struct Block {
    ActivityPtr scatter;
    ActivityPtr across;
    ActivityPtr gather;
    ActivityPtr take;  // what nobody sends to this rank: its own slice
  };
  [[nodiscard]] Block start_block(const Group& group, const AllreduceJob& job, ChunkRange range);
  [[nodiscard]] std::vector<ChunkRange> blocks_of(const AllreduceJob& job) const;
  [[nodiscard]] ActivityPtr start_across(Mesh& mesh, AllreduceJob job);
  [[nodiscard]] Algorithm across(int hosts, std::size_t bytes) const noexcept;
  [[nodiscard]] bool by_slices(const AllreduceJob& job) const;

  Group ring_;
  AllreducerOptions options_;
  HostLayout layout_;
  LinkClass links_;
  Mesh mesh_;
  std::unique_ptr<Mesh> local_;    // of this host, when there are levels
  std::unique_ptr<Mesh> cross_;    // the same place on every host
  std::unique_ptr<Mesh> leaders_;  // only on the first member of a host
};

}  // namespace ringtune
