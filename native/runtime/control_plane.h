// The control links of a rank: a star around rank 0. Carries out the sends of the negotiator and collects what arrives.
// Used by the cycle thread only.
#pragma once

#include <memory>
#include <vector>

#include "base/clock.h"
#include "control/messages.h"
#include "transport/fabric.h"
#include "transport/io.h"

namespace ringtune {

struct Received {
  int from = 0;
  ControlMessage message;
  std::size_t bytes = 0;
};

/// Borrows the fabric.
class ControlPlane {
 public:
  /// Connects to rank 0, or from rank 0 to all. Throws Timeout naming the peer.
  ControlPlane(Fabric& fabric, Deadline deadline);

  /// Queues a message; flush() moves it.
  void send(int to, ByteView payload);
  /// Sends what the links take; true when nothing is left. A peer that has left is no error. Throws PeerLost.
  bool flush();
  /// Everything that has arrived completely. Throws PeerLost, Protocol.
  [[nodiscard]] std::vector<Received> receive();
  /// The peer has said that it leaves, or that the job is over: losing its link is expected from now on.
  void expect_departure(int peer) noexcept;

 private:
  struct Peer {
    Link* link = nullptr;
    FrameReader reader;
    FrameWriter writer;
    bool departing = false;
    bool gone = false;
  };
  [[nodiscard]] Peer& peer(int rank);

  std::vector<Peer> peers_;  // rank 0: ranks 1 ..; others: rank 0 alone
  int first_rank_;           // rank of peers_[0]
};

}  // namespace ringtune
