// The control links of a rank: to its parent and its children in the tree around rank 0, and to nobody else. Carries
// out the sends of the negotiator and collects what arrives. Used by the driving thread only.
#pragma once

#include <memory>
#include <vector>

#include "base/clock.h"
#include "control/messages.h"
#include "control/tree.h"
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
  /// Connects to the parent, then to the children. Blocks until they have come. Throws Timeout naming the peer.
  ControlPlane(Fabric& fabric, int fan_out, Deadline deadline);

  /// -1 on rank 0.
  [[nodiscard]] int parent() const noexcept { return place_.parent; }

  /// Queues a message; flush() moves it.
  void send(int to, ByteView payload);
  /// Sends what the links take; true when nothing is left. A peer that has left is no error. Throws PeerLost.
  bool flush();
  /// Everything for this rank that has arrived completely; other ranks' questions and their answers are passed on.
  /// Losing the link of a peer that has left, or whose departure was reported, is no error. Throws PeerLost, Protocol.
  [[nodiscard]] std::vector<Received> receive();

 private:
  struct Peer {
    Link* link = nullptr;
    FrameReader reader;
    FrameWriter writer;
    bool departing = false;
    bool gone = false;
  };
  [[nodiscard]] Peer& peer(int rank);
  void note_departures(Peer& source, const ControlMessage& message);
  bool relay(const ControlMessage& message);

  int rank_;
  TreePlace place_;
  std::vector<Peer> peers_;  // the parent, if there is one, and the children
};

}  // namespace ringtune
