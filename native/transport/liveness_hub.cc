#include "transport/liveness_hub.h"

#include <poll.h>

#include <utility>

#include "base/error.h"
#include "transport/socket.h"
#include "transport/wire.h"

namespace ringtune {
namespace {

constexpr const char* kLivenessChannel = "ringtune/liveness";
constexpr std::size_t kMaxExchangeBytes = 64u << 20;

[[noreturn]] void throw_gone(const LivenessPeer& peer, const Transfer& transfer) {
  throw PeerLost(peer.rank, peer.name + " went away during the rendezvous: " + describe(transfer));
}

[[noreturn]] void throw_late(const LivenessPeer& peer) {
  throw Timeout(peer.name + " met in the store but did not complete the rendezvous in time");
}

void send_frame(const LivenessSocket& socket, ByteView payload, Deadline deadline) {
  SendQueue queue;
  queue.push_frame(payload);
  while (!queue.empty()) {
    const Transfer transfer = write_some(socket.fd.get(), queue.pending());
    if (transfer.closed) throw_gone(socket.peer, transfer);
    queue.sent(transfer.bytes);
    if (transfer.bytes == 0 && !poll_socket(socket.fd.get(), POLLOUT, deadline)) throw_late(socket.peer);
  }
}

/// Reads exactly one frame: what follows on the socket belongs to the monitor.
Bytes receive_frame(const LivenessSocket& socket, Deadline deadline) {
  Bytes bytes(4);
  bool header = true;
  for (std::size_t have = 0; have < bytes.size() || header;) {
    const Transfer transfer = read_some(socket.fd.get(), std::span(bytes).subspan(have));
    if (transfer.closed) throw_gone(socket.peer, transfer);
    have += transfer.bytes;
    if (transfer.bytes == 0 && !poll_socket(socket.fd.get(), POLLIN, deadline)) throw_late(socket.peer);
    if (!header || have < bytes.size()) continue;
    const std::size_t length = ByteReader(bytes).u32();
    if (length > kMaxExchangeBytes)
      throw Protocol(socket.peer.name + " sent a frame of " + std::to_string(length) + " bytes");
    header = false;
    have = 0;
    bytes.resize(length);
  }
  return bytes;
}

Fd accept_or_note(TcpBootstrap& bootstrap, const BootstrapRequest& request, std::string& missing) {
  try {
    return bootstrap.accept(request);
  } catch (const Timeout&) {  // look whether the others are there (without waiting) and name all together
    missing += (missing.empty() ? "" : ", ") + request.peer_name;
    return Fd();
  }
}

}  // namespace

std::vector<LivenessSocket> form_liveness_hub(TcpBootstrap& bootstrap, int rank, const std::vector<LivenessPeer>& ranks,
                                              Deadline deadline) {
  const AbortState never_aborted;
  std::vector<LivenessSocket> sockets;
  std::string missing;
  const auto request = [&](const LivenessPeer& peer) {
    return BootstrapRequest{.peer = peer.rank,
                            .peer_name = peer.name,
                            .channel = kLivenessChannel,
                            .deadline = deadline,
                            .aborted = &never_aborted};
  };
  if (rank != 0) {
    Fd fd = bootstrap.dial(request(ranks[0]), ranks[0].address, ranks[0].port);
    sockets.push_back({.peer = ranks[0], .fd = ParentOnlyFd(std::move(fd))});
  } else {
    for (std::size_t peer = 1; peer < ranks.size(); ++peer) {
      Fd fd = accept_or_note(bootstrap, request(ranks[peer]), missing);
      if (fd) sockets.push_back({.peer = ranks[peer], .fd = ParentOnlyFd(std::move(fd))});
    }
  }
  if (!missing.empty()) throw Timeout("these ranks met in the store but did not connect in time: " + missing);
  for (const LivenessSocket& socket : sockets) detect_silence(socket.fd.get());
  return sockets;
}

std::vector<Bytes> liveness_exchange(std::vector<LivenessSocket>& sockets, int rank, ByteView mine, Deadline deadline) {
  if (rank != 0) {
    send_frame(sockets[0], mine, deadline);
    const Bytes table = receive_frame(sockets[0], deadline);
    ByteReader reader(table);
    std::vector<Bytes> all(reader.u32());
    for (Bytes& entry : all) {
      const ByteView view = reader.blob();
      entry.assign(view.begin(), view.end());
    }
    return all;
  }
  std::vector<Bytes> all{Bytes(mine.begin(), mine.end())};
  for (const LivenessSocket& socket : sockets) all.push_back(receive_frame(socket, deadline));
  ByteWriter table;
  table.u32(static_cast<std::uint32_t>(all.size()));
  for (const Bytes& entry : all) table.blob(entry);
  for (const LivenessSocket& socket : sockets) send_frame(socket, table.bytes(), deadline);
  return all;
}

}  // namespace ringtune
