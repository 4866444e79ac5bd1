// One connection from every rank to rank 0: the last step of the rendezvous, later the sockets of the monitor.
#pragma once

#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "transport/fork_guard.h"
#include "transport/tcp_meeting.h"

namespace ringtune {

struct StarPeer {
  int rank = 0;
  std::string name;  // "rank 1 on host a"
  std::string address;
  std::uint16_t port = 0;
};

struct StarSocket {
  StarPeer peer;
  ParentOnlyFd fd;
};

/// The sockets of this rank: rank 0 has one to every other rank, others one to rank 0. Blocks until all have connected.
/// Throws Timeout naming the ranks that did not, or what TcpMeeting throws.
[[nodiscard]] std::vector<StarSocket> form_star(TcpMeeting& meeting, int rank, const std::vector<StarPeer>& ranks,
                                                Deadline deadline);

/// Gives `mine` to all and returns what every rank gave, by rank; so nobody returns before all have come. Blocks.
/// Throws PeerLost when a rank went away, Timeout.
[[nodiscard]] std::vector<Bytes> star_exchange(std::vector<StarSocket>& sockets, int rank, ByteView mine,
                                               Deadline deadline);

}  // namespace ringtune
