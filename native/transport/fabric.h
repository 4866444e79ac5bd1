// Makes links between the ranks of a job. Two ranks of one host use shared memory (memfd, so that nothing is left in
// /dev/shm even after SIGKILL), others TCP; `prefer` restricts that.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "transport/abortable.h"
#include "transport/inquiry.h"
#include "transport/link.h"
#include "transport/store.h"
#include "transport/waker.h"

namespace ringtune {

enum class TransportChoice : std::uint8_t { kAuto = 0, kShm = 1, kTcp = 2, kMpi = 3 };

/// Takes over one end of a connected, non-blocking stream socket: what is written there reaches the peer's end of the
/// same number, by whatever carries it (MPI). Called on the thread that connects; does not block.
using Carrier = std::function<void(int peer, std::uint32_t number, int socket)>;

struct FabricOptions {
  int rank = 0;
  int size = 1;
  std::string secret;        // of the job; every rank has the same (handshake.h). A job of one needs none
  std::string job = "job";   // prefix of all store keys: a fresh one for every init of a job
  std::string host;          // identity of the host; ranks with equal host (+ boot id, pid namespace) share memory
  std::string bind_address;  // local address for TCP; empty: StoreClient::local_address()
  TransportChoice transport = TransportChoice::kAuto;
  std::size_t shm_ring_bytes = 1 << 20;      // per directed pair
  std::size_t tcp_buffer_bytes = 256 << 10;  // of a link, for what is reduced out of it: small, so that it stays cached
  std::string tcp_congestion = "auto";       // see control_congestion()
  int sockets_per_peer = 1;                  // of a TCP link; the smaller wish of the two ranks counts
  Carrier carrier;                           // of all links but control's, for kMpi, alike on all ranks
  std::int64_t silence_ns = 0;  // a rank that gives no sign of life for so long is lost, alike on all ranks; 0 = never
};

/// Channels named control... carry small messages: one socket whatever sockets_per_peer.
[[nodiscard]] inline bool is_control_channel(std::string_view channel) noexcept {
  return channel.starts_with("control");
}

/// Called by the monitor thread when a peer process died (rank, reason), at most once per rank. Must not block, throw
/// or destroy the fabric; may call Fabric::abort().
using PeerLostHandler = std::function<void(int rank, const std::string& reason)>;

class Fabric {
 public:
  virtual ~Fabric() = default;  // closes all links; frees every segment and socket
  [[nodiscard]] virtual int rank() const noexcept = 0;
  [[nodiscard]] virtual int size() const noexcept = 0;
  /// The rank's waker: rung by every link of this fabric when it can make progress.
  [[nodiscard]] virtual Waker& waker() noexcept = 0;
  /// "shm", "tcp", "mpi" or "inproc": what connect(peer) would give. Never blocks after construction.
  [[nodiscard]] virtual std::string_view viable(int peer) const = 0;
  /// Whether these two ranks do, as every rank of the job sees it alike. Never blocks.
  [[nodiscard]] virtual bool share_memory(int a, int b) const = 0;
  /// Rings the waker of a rank on this host; nothing for others. Any thread; never blocks.
  virtual void ring(int peer) noexcept = 0;
  /// Both sides must call connect with the same channel name (any order among several peers; blocks until both did).
  /// Throws Timeout naming the peer, PeerLost when it died or after abort(), InvalidArgument when the channel is open
  /// or the peer is no rank of the job. The link is owned by the fabric and lives as long as it. One thread at a time.
  virtual Link& connect(int peer, const std::string& channel, Deadline deadline) = 0;
  /// Closes the links whose channels' names begin with `prefix`, at both ends: nobody uses them any more, and nobody
  /// will connect them again. The peers read what has been sent before. The thread that connects.
  virtual void close(const std::string& prefix) noexcept = 0;
  /// Hosts of all ranks, by rank (for local/cross ranks and hierarchical algorithms).
  [[nodiscard]] virtual std::vector<std::string> hosts() const = 0;
  /// At most once. Starts liveness: one socket to rank 0 per rank (rank 0 relays losses), a monitor thread that only
  /// blocks in poll(). A process that dies is reported on every rank well within 2 s, one that is frozen after
  /// FabricOptions::silence_ns. Leaving: see leave().
  virtual void start_monitor(PeerLostHandler handler) = 0;
  /// Who takes the questions of other ranks; before start_monitor. Without one they remain without answer.
  virtual void on_inquiry(InquiryHandler /*handler*/) {}
  /// Asks over the liveness sockets: rank 0 all other ranks, these rank 0. Blocks until all have answered, left or are
  /// lost, or the deadline. No answers at all in a fabric without such sockets, and before start_monitor. Any thread
  /// but the handlers', before the fabric's end.
  [[nodiscard]] virtual Answers inquire(ByteView /*question*/, Deadline /*deadline*/) { return {}; }
  /// No question waits for answers any longer. Any thread.
  virtual void end_inquiries() noexcept {}
  /// Answers a question. Any thread; never blocks.
  virtual void reply(int /*to*/, std::uint32_t /*number*/, ByteView /*answer*/) noexcept {}
  /// Ranks of this host whose processes are stopped (SIGSTOP, a debugger), as far as this rank can see.
  [[nodiscard]] virtual std::vector<int> stopped_neighbours() const { return {}; }
  /// Reports a clean departure on the liveness socket: the peers will not report this rank as lost.
  virtual void leave() noexcept = 0;
  /// Tells the peers that this rank has ended by an error: they report it as lost, for that reason, at once and not
  /// when its process ends. Any thread; never blocks.
  virtual void fail(const std::string& reason) noexcept = 0;
  /// Rank 0, after start_monitor: blocks until every other rank has left or is lost; false at the deadline. Other
  /// ranks: true at once. Any thread but the handler's. For a shutdown in which rank 0 goes last.
  [[nodiscard]] virtual bool wait_left(Deadline deadline) = 0;
  /// What else is to be aborted with the links, as long as it lives. Any thread.
  virtual void add_abortable(const std::shared_ptr<Abortable>& abortable) = 0;
  /// Aborts all links, present and future: they throw PeerLost(their peer, reason). Any thread; wakes all waiters.
  virtual void abort(const std::string& reason) noexcept = 0;
};

/// The fabric of a real job. Blocks until all `size` ranks have put their peer info into the store or the deadline; the
/// Timeout message names the missing ranks. `store` is borrowed and must outlive the fabric; it may be null when size
/// == 1.
[[nodiscard]] std::unique_ptr<Fabric> make_fabric(const FabricOptions& options, StoreClient* store, Deadline deadline);

/// `size` fabrics joined in one process (tests, the control plane at scale). Each is used by its own thread.
[[nodiscard]] std::vector<std::unique_ptr<Fabric>> make_inproc_fabrics(int size, std::size_t ring_bytes = 1 << 20);

}  // namespace ringtune
