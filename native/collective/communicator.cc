#include "collective/communicator.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "collective/shm_bootstrap.h"

namespace ringtune {
namespace {

MeshOptions mesh_options(const CommunicatorOptions& options, const char* name) {
  return {.channel = options.prefix + name,
          .connect_timeout_ns = options.connect_timeout_ns,
          .idle_timeout_ns = options.idle_timeout_ns};
}

}  // namespace

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

Group connect_ring(Fabric& fabric, const std::vector<int>& members, const std::string& prefix, Deadline deadline) {
  const auto own = std::find(members.begin(), members.end(), fabric.rank());
  RINGTUNE_CHECK(own != members.end(), "rank ", fabric.rank(), " is no member of the ring");
  Group group{.rank = static_cast<int>(own - members.begin()),
              .size = static_cast<int>(members.size()),
              .waker = &fabric.waker()};
  if (group.size == 1) return group;
  // Edge i leads from member i to its successor. Each makes its two edges in ascending order, so the one that is waited
  // for is never waiting for a later edge: no circle.
  const auto edge = [&](int from, int peer) {
    const int rank = members[static_cast<std::size_t>(peer)];
    return &fabric.connect(rank, prefix + "ring." + std::to_string(from), deadline);
  };
  const int next = (group.rank + 1) % group.size;
  const int previous = (group.rank + group.size - 1) % group.size;
  if (group.rank < previous) {
    group.next = edge(group.rank, next);
    group.prev = edge(previous, previous);
  } else {
    group.prev = edge(previous, previous);
    group.next = edge(group.rank, next);
  }
  return group;
}

Communicator::Communicator(Fabric& fabric, std::vector<int> members, CommunicatorOptions options)
    : fabric_(fabric),
      members_(std::move(members)),
      options_(std::move(options)),
      mesh_(fabric, members_, mesh_options(options_, "pairs")) {
  RINGTUNE_CHECK(std::is_sorted(members_.begin(), members_.end()), "members in ascending order");
}

int Communicator::position_of(int rank) const noexcept {
  const auto found = std::lower_bound(members_.begin(), members_.end(), rank);
  return found == members_.end() || *found != rank ? -1 : static_cast<int>(found - members_.begin());
}

const Group& Communicator::ring() {
  if (!ring_connected_) {
    ring_ = connect_ring(fabric_, members_, options_.prefix, Deadline::after(options_.connect_timeout_ns));
    ring_.idle_timeout_ns = options_.idle_timeout_ns;
    ring_connected_ = true;
  }
  return ring_;
}

ShmGroup* Communicator::shm_group() {
  if (!shm_connected_) {
    ShmGroupOptions options = default_shm_group();
    options.idle_timeout_ns = options_.idle_timeout_ns;
    // At the start of a job nobody watches its ranks yet: that one stands still shows by the time.
    Group meeting = ring();
    meeting.idle_timeout_ns = options_.connect_timeout_ns;
    try {
      group_ = connect_shm_group(fabric_, meeting, members_, std::move(options));
    } catch (const Timeout& error) {
      throw Timeout(why_in_vain(error.what()));
    }
    shm_connected_ = true;
  }
  return group_.get();
}

/// A rank waits for its neighbour in the ring, which may itself wait for one that stands stopped.
std::string Communicator::why_in_vain(const std::string& waited) const {
  for (const int rank : fabric_.stopped_neighbours()) {
    if (position_of(rank) < 0) continue;
    return "rank " + std::to_string(rank) + " on host " + fabric_.hosts().at(static_cast<std::size_t>(rank)) +
           " stands stopped (SIGSTOP?) and did not complete the rendezvous in time";
  }
  return waited;
}

Allreducer& Communicator::allreducer() {
  if (!allreducer_) {
    allreducer_ = std::make_unique<Allreducer>(
        fabric_, members_, ring(), AllreducerOptions{.mesh = mesh_options(options_, "mesh"), .table = options_.table});
  }
  return *allreducer_;
}

}  // namespace ringtune
