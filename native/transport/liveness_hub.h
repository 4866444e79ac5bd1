// One connection from every rank to rank 0: the last step of the rendezvous, later the sockets of the monitor.
#pragma once

#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "transport/fork_guard.h"
#include "transport/tcp_bootstrap.h"

namespace ringtune {

struct LivenessPeer {
  int rank = 0;
  std::string name;  // "rank 1 on host a"
  std::string address;
  std::uint16_t port = 0;
};

struct LivenessSocket {
  LivenessPeer peer;
  ParentOnlyFd fd;
};

/// The sockets of this rank: rank 0 has one to every other rank, others one to rank 0. Blocks until all have connected.
/// Throws Timeout naming the ranks that did not, or what TcpBootstrap throws.
[[nodiscard]] std::vector<LivenessSocket> form_liveness_hub(TcpBootstrap& bootstrap, int rank,
                                                            const std::vector<LivenessPeer>& ranks, Deadline deadline);

/// Gives `mine` to all and returns what every rank gave, by rank; so nobody returns before all have come. Blocks.
/// Throws PeerLost when a rank went away, Timeout.
[[nodiscard]] std::vector<Bytes> liveness_exchange(std::vector<LivenessSocket>& sockets, int rank, ByteView mine,
                                                   Deadline deadline);

}  // namespace ringtune
