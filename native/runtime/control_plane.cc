#include "runtime/control_plane.h"

#include "base/check.h"

namespace ringtune {

ControlPlane::ControlPlane(Fabric& fabric, Deadline deadline) : first_rank_(fabric.rank() == 0 ? 1 : 0) {
  const int count = fabric.rank() == 0 ? fabric.size() - 1 : 1;
  peers_.resize(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    peers_[static_cast<std::size_t>(i)].link = &fabric.connect(first_rank_ + i, "control", deadline);
  }
}

ControlPlane::Peer& ControlPlane::peer(int rank) {
  const int index = rank - first_rank_;
  RINGTUNE_CHECK(index >= 0 && index < static_cast<int>(peers_.size()), "no control link to rank ", rank);
  return peers_[static_cast<std::size_t>(index)];
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
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    Peer& source = peers_[i];
    if (source.gone) continue;
    try {
      while (source.reader.poll(*source.link)) {
        const ByteView frame = source.reader.frame();
        messages.push_back({first_rank_ + static_cast<int>(i), decode(frame), frame.size()});
        const auto* announcement = std::get_if<WorkerNews>(&messages.back().message);
        if (announcement != nullptr && announcement->leaving.contains(first_rank_ + static_cast<int>(i)))
          source.departing = true;
      }
    } catch (const PeerLost&) {
      if (!source.departing) throw;
      source.gone = true;
    }
  }
  return messages;
}

void ControlPlane::expect_departure(int rank) noexcept { peer(rank).departing = true; }

}  // namespace ringtune
