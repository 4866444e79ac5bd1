// Two ranks find each other on TCP: one listening socket per rank; the higher rank dials, the lower one accepts, and a
// hello names job, ranks and channel, so that connections may come in any order. Both prove that they know the job's
// secret (see handshake.h), each proof being good for these ranks and this channel alone: strangers are turned away.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <utility>

#include "base/fd.h"
#include "transport/handshake.h"
#include "transport/link_table.h"
#include "transport/waker.h"
#include "transport/wire.h"

namespace ringtune {

/// Whom to meet, and how long.
struct BootstrapRequest {
  int peer = 0;
  std::string peer_name;  // for messages
  std::string channel;
  Deadline deadline;
  const AbortState* aborted = nullptr;  // borrowed; ends the wait
};

/// Owns the listening socket and the connections that are not matched yet. Used by one thread at a time. Borrows the
/// waker; sockets are watched only during a call, so a stranger at the door wakes nobody later.
class TcpBootstrap {
 public:
  /// Throws Error with address and reason.
  TcpBootstrap(std::string job, int rank, const std::string& bind_address, Secret secret, Waker& waker);
  [[nodiscard]] std::uint16_t port() const;

  /// Blocks until the peer (a higher rank) has dialled for this channel. Throws Timeout naming the peer, or as
  /// request.aborted says.
  [[nodiscard]] Fd accept(const BootstrapRequest& request);
  /// Dials the peer (a lower rank) and blocks until it has accepted. Throws PeerLost when nobody listens there,
  /// Protocol when it is no rank of this job and version, Timeout.
  [[nodiscard]] Fd dial(const BootstrapRequest& request, const std::string& host, std::uint16_t port);

 private:
  struct Stranger {
    Fd fd;
    FrameAssembler in;
    Deadline until;  // by then it must have said all
    Handshake handshake = {};
    Bytes hello = {};  // once it has come
  };
  void welcome_strangers();
  std::list<Stranger>::iterator welcome(std::list<Stranger>::iterator stranger);
  [[nodiscard]] bool read_message(Stranger& stranger);
  void challenge(Stranger& stranger, ByteView hello);
  void admit(Stranger& stranger, ByteView proof);
  [[nodiscard]] Fd take_match(const BootstrapRequest& request);
  void pause(const BootstrapRequest& request, std::uint32_t ticket) const;
  void finish_connect(const BootstrapRequest& request, int fd, const std::string& where) const;
  void prove(const BootstrapRequest& request, int fd, const std::string& where, ByteView hello,
             const Nonce& nonce) const;

  std::string job_;
  int rank_;
  Secret secret_;
  Waker& waker_;
  Fd listener_;
  std::list<Stranger> strangers_;                      // connected, not yet proved to be ranks of this job
  std::map<std::pair<int, std::string>, Fd> waiting_;  // said hello for a channel that accept() has not asked for yet
};

/// Watches a socket on a waker while it lives. Borrows both.
class WatchScope {
 public:
  WatchScope(Waker& waker, int fd) : waker_(waker), fd_(fd) { waker_.watch(fd, true); }
  ~WatchScope() { waker_.unwatch(fd_); }
  WatchScope(const WatchScope&) = delete;
  WatchScope& operator=(const WatchScope&) = delete;

 private:
  Waker& waker_;
  int fd_;
};

/// Reads exactly `bytes` from a watched non-blocking socket; throws PeerLost at end of stream, Timeout, or as aborted.
void read_exactly(const BootstrapRequest& request, Waker& waker, int fd, std::span<std::byte> bytes);

}  // namespace ringtune
