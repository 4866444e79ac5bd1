#include "runtime/control_plane.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace ringtune {

// The parent first: so every rank waits only for ranks above it, up to rank 0, which waits for its children alone.
ControlPlane::ControlPlane(Fabric& fabric, int fan_out, Deadline deadline)
    : rank_(fabric.rank()), place_(tree_place(fabric.rank(), fabric.size(), fan_out)) {
  const auto meet = [&](int rank) { peers_.emplace_back().link = &fabric.connect(rank, "control", deadline); };
  if (place_.parent >= 0) meet(place_.parent);
  for (const TreeChild& child : place_.children) meet(child.rank);
}

ControlPlane::Peer& ControlPlane::peer(int rank) {
  const auto found = std::find_if(peers_.begin(), peers_.end(), [&](const Peer& p) { return p.link->peer() == rank; });
  RINGTUNE_CHECK(found != peers_.end(), "no control link to rank ", rank);
  return *found;
}

void ControlPlane::send(int to, ByteView payload) {
  Peer& target = peer(to);
  if (!target.gone) target.writer.push(payload);
}

bool ControlPlane::flush() {
  bool all_sent = true;
  for (Peer& target : peers_) {
    if (target.gone || target.writer.empty()) continue;
    try {
      all_sent = target.writer.poll(*target.link) && all_sent;
    } catch (const PeerLost&) {
      if (!target.departing) throw;
      target.gone = true;
    }
  }
  return all_sent;
}

std::vector<Received> ControlPlane::receive() {
  std::vector<Received> messages;
  for (Peer& source : peers_) {
    if (source.gone) continue;
    const int from = source.link->peer();
    try {
      while (source.reader.poll(*source.link)) {
        const ByteView frame = source.reader.frame();
        ControlMessage message = decode(frame);
        note_departures(source, message);
        if (!relay(message)) messages.push_back({from, std::move(message), frame.size()});
      }
    } catch (const PeerLost&) {
      if (!source.departing) throw;
      source.gone = true;
    }
  }
  return messages;
}

/// A rank that has announced its departure, or is free to leave by a decision, may close its link.
void ControlPlane::note_departures(Peer& source, const ControlMessage& message) {
  const int from = source.link->peer();
  if (const auto* news = std::get_if<WorkerNews>(&message)) {
    source.departing = source.departing || news->leaving.contains(from);
  } else if (const auto* decisions = std::get_if<Decisions>(&message)) {
    for (const Decision& item : decisions->items) {
      const auto* left = std::get_if<LeftDecision>(&item);
      // The parent goes when all below it have left, or rank 0 has.
      if (left == nullptr) continue;
      if (left->departure.rank == 0 || left->departure.rank == rank_) source.departing = true;
    }
  }
}

/// A question of another rank goes on up to rank 0, its answer down to the rank that asked. False for one of this rank,
/// and for the messages of the negotiation.
bool ControlPlane::relay(const ControlMessage& message) {
  const auto* ping = std::get_if<ClockPing>(&message);
  const auto* query = std::get_if<WaitQuery>(&message);
  if (rank_ == 0 || (ping == nullptr && query == nullptr)) return false;
  const int asker = ping != nullptr ? ping->rank : query->rank;
  if (asker == rank_) return false;
  const Bytes payload = encode(message);
  if (ping != nullptr ? ping->coordinator_ns == 0 : !query->answered) {
    send(place_.parent, payload);
    return true;
  }
  for (const TreeChild& child : place_.children) {
    if (child.ranks.contains(asker)) {
      send(child.rank, payload);
      return true;
    }
  }
  throw Protocol("an answer is for rank " + std::to_string(asker) + ", which is not below rank " +
                 std::to_string(rank_));
}

}  // namespace ringtune
