// The fabric of a real job: processes on one or several hosts.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "transport/carried_link.h"
#include "transport/fabric.h"
#include "transport/link_table.h"
#include "transport/liveness_hub.h"
#include "transport/monitor.h"
#include "transport/peer_info.h"
#include "transport/ring_link.h"
#include "transport/shared_waker.h"
#include "transport/socket.h"
#include "transport/tcp_bootstrap.h"
#include "transport/tcp_link.h"
#include "transport/tls.h"

namespace ringtune {
namespace {

constexpr std::size_t kSegmentAddressBytes = 16;

struct Peer {
  PeerInfo peer_info;
  std::shared_ptr<Bell> bell;  // set when its memory could be opened from here
  bool shares_memory = false;  // both sides could
  std::vector<bool> reached;   // by rank: whose memory it could open
  std::string why_not;         // when they do not share memory
};

class JobFabric final : public Fabric {
 public:
  JobFabric(FabricOptions options, StoreClient* store, Deadline deadline);
  ~JobFabric() override;

  [[nodiscard]] int rank() const noexcept override { return options_.rank; }
  [[nodiscard]] int size() const noexcept override { return options_.size; }
  [[nodiscard]] Waker& waker() noexcept override { return waker_; }
  [[nodiscard]] std::string_view viable(int peer) const override {
    if (peer_at(peer).shares_memory) return "shm";
    return options_.transport == TransportChoice::kMpi ? "mpi" : "tcp";
  }
  [[nodiscard]] bool share_memory(int a, int b) const override;
  void ring(int peer) noexcept override {
    if (const Peer& other = peers_[static_cast<std::size_t>(peer)]; other.shares_memory) other.bell->notify();
  }
  [[nodiscard]] std::vector<std::string> hosts() const override;
  Link& connect(int peer, const std::string& channel, Deadline deadline) override;
  void start_monitor(PeerLostHandler handler) override;
  void on_inquiry(InquiryHandler handler) override { inquiry_ = std::move(handler); }
  [[nodiscard]] Answers inquire(ByteView question, Deadline deadline) override;
  void end_inquiries() noexcept override;
  void reply(int to, std::uint32_t number, ByteView answer) noexcept override;
  [[nodiscard]] std::vector<int> stopped_neighbours() const override;
  void leave() noexcept override;
  void fail(const std::string& reason) noexcept override;
  void close(const std::string& prefix) noexcept override { links_.close(prefix); }
  [[nodiscard]] bool wait_left(Deadline deadline) override;
  void add_abortable(const std::shared_ptr<Abortable>& abortable) override { links_.add_abortable(abortable); }
  void abort(const std::string& reason) noexcept override;

 private:
  /// The higher rank dials: roles are fixed, so it does not matter who comes first.
  [[nodiscard]] Side side_to(int peer) const noexcept { return rank() < peer ? Side::kListener : Side::kCaller; }
  void meet_all(StoreClient& store, Deadline deadline);
  void open_bells();
  void agree_on_memory(Deadline deadline);
  void check_choices() const;
  [[nodiscard]] const Peer& peer_at(int rank) const;
  [[nodiscard]] Fd meet(const BootstrapRequest& request);
  [[nodiscard]] std::unique_ptr<Link> connect_shm(const BootstrapRequest& request, Fd socket);
  [[nodiscard]] DuplexSegment offer_segment(const BootstrapRequest& request, int socket);
  [[nodiscard]] DuplexSegment take_segment(const BootstrapRequest& request, int socket);

  FabricOptions options_;
  SharedWaker waker_;
  std::optional<TcpBootstrap> bootstrap_;
  std::vector<Peer> peers_;  // by rank; the own one without a bell
  LinkTable links_;
  std::mutex monitor_mutex_;  // guards the next two against leave() and wait_left() on other threads
  std::vector<LivenessSocket> liveness_hub_;
  InquiryHandler inquiry_;
  std::unique_ptr<Monitor> monitor_;
};

JobFabric::JobFabric(FabricOptions options, StoreClient* store, Deadline deadline)
    : options_(std::move(options)), waker_(options_.size > 1 ? WakerReach::kHost : WakerReach::kProcess, 0) {
  if (options_.host.empty()) {
    std::array<char, 256> name{};
    if (::gethostname(name.data(), name.size() - 1) != 0) throw_errno("cannot read the name of this host");
    options_.host = name.data();
  }
  if (options_.size > 1) {
    RINGTUNE_CHECK(store != nullptr, "a job of several ranks needs a store");
    meet_all(*store, deadline);
    return;
  }
  Peer self;
  self.peer_info = describe_process();
  self.peer_info.host = options_.host;
  peers_.push_back(std::move(self));
}

void JobFabric::meet_all(StoreClient& store, Deadline deadline) {
  PeerInfo own = describe_process();
  own.rank = options_.rank;
  own.host = options_.host;
  own.transport = options_.transport;
  own.sockets = options_.sockets_per_peer;
  own.waker = waker_.address();
  own.address = options_.bind_address.empty() ? store.local_address() : options_.bind_address;
  bootstrap_.emplace(options_.job, options_.rank, own.address, Secret(options_.secret), waker_);
  own.port = bootstrap_->port();
  for (PeerInfo& peer_info : exchange_peer_infos(options_, own, store, deadline)) {
    // In place: GCC 12 at -O3 destroys a temporary Peer that was never built when the exchange throws.
    peers_.emplace_back().peer_info = std::move(peer_info);
  }
  open_bells();
  agree_on_memory(deadline);
  check_choices();
  std::vector<CoreSet> cores;
  for (const Peer& peer : peers_) {
    if (peer.shares_memory || peer.peer_info.rank == rank()) cores.push_back(peer.peer_info.cores);
  }
  waker_.set_spin_ns(default_spin_ns(cores));
}

void JobFabric::open_bells() {
  const PeerInfo& own = peers_[static_cast<std::size_t>(rank())].peer_info;
  for (Peer& peer : peers_) {
    if (peer.peer_info.rank == rank()) continue;
    peer.why_not = why_not_shared(own, peer.peer_info);
    if (peer.why_not.empty() &&
        (own.transport == TransportChoice::kTcp || peer.peer_info.transport == TransportChoice::kTcp)) {
      peer.why_not = "RINGTUNE_TRANSPORT=tcp was asked for";
    }
    if (peer.why_not.empty() && own.transport == TransportChoice::kMpi) {
      peer.why_not = "RINGTUNE_TRANSPORT=mpi was asked for";
    }
    if (!peer.why_not.empty()) continue;
    try {
      peer.bell = std::make_shared<PeerBell>(peer.peer_info.waker);
    } catch (const Error& error) {  // hidepid, a security module ...: the pair uses TCP then
      peer.why_not = error.what();
      log(LogLevel::kWarning, "no shared memory with ", name_of(peer.peer_info), ", TCP instead: ", error.what());
    }
  }
}

// A pair shares memory only when both could open the other's: each rank gives the list of those that it reached.
void JobFabric::agree_on_memory(Deadline deadline) {
  std::vector<LivenessPeer> ranks;
  ByteWriter reached;
  for (const Peer& peer : peers_) {
    const PeerInfo& at = peer.peer_info;
    ranks.push_back({.rank = at.rank, .name = name_of(at), .address = at.address, .port = at.port});
  }
  // As runs of ranks: the peers of a host are usually neighbours, and every rank gets the lists of all.
  for (int first = 0; first < size(); ++first) {
    int end = first;
    while (end < size() && peers_[static_cast<std::size_t>(end)].bell) ++end;
    if (end == first) continue;
    reached.i32(first);
    reached.i32(end);
    first = end;
  }
  liveness_hub_ = form_liveness_hub(*bootstrap_, rank(), ranks, deadline);
  const std::vector<Bytes> lists = liveness_exchange(liveness_hub_, rank(), reached.bytes(), deadline);
  for (std::size_t index = 0; index < peers_.size() && index < lists.size(); ++index) {
    Peer& peer = peers_[index];
    ByteReader reader(lists[index]);
    peer.reached.assign(peers_.size(), false);
    while (reader.remaining() > 0) {
      const std::int32_t first = reader.i32();
      const std::int32_t end = reader.i32();
      if (first < 0 || end < first || end > size()) {
        throw Protocol("a rank says that it reaches a rank that does not exist");
      }
      std::fill(peer.reached.begin() + first, peer.reached.begin() + end, true);
    }
    peer.shares_memory = peer.bell && peer.reached[static_cast<std::size_t>(rank())];
    if (peer.bell && !peer.shares_memory) peer.why_not = "it cannot open the memory of this process";
  }
}

void JobFabric::check_choices() const {
  const PeerInfo& own = peers_[static_cast<std::size_t>(rank())].peer_info;
  for (const Peer& peer : peers_) {
    if (peer.peer_info.rank == rank() || peer.shares_memory) continue;
    const std::string name = name_of(peer.peer_info);
    if ((own.transport == TransportChoice::kMpi) != (peer.peer_info.transport == TransportChoice::kMpi)) {
      throw InvalidArgument("RINGTUNE_TRANSPORT=mpi is set on some ranks only: rank " + std::to_string(rank()) +
                            " and " + name + " differ. Set it on all ranks");
    }
    if (own.transport == TransportChoice::kShm) {
      throw InvalidArgument("RINGTUNE_TRANSPORT=shm, but rank " + std::to_string(rank()) + " and " + name +
                            " cannot share memory: " + peer.why_not + ". Use RINGTUNE_TRANSPORT=auto");
    }
    if (own.boot_id != peer.peer_info.boot_id && is_loopback(peer.peer_info.address)) {
      throw InvalidArgument(name + " is on another machine but gave the address " + peer.peer_info.address +
                            ", which only that machine can reach: give the store's host by an address that all hosts "
                            "reach, or set RINGTUNE_INTERFACE_ADDRESS there");
    }
  }
}

JobFabric::~JobFabric() {
  links_.clear();
  std::unique_ptr<Monitor> ending;  // without the mutex: its thread may be about to reply
  {
    const std::lock_guard lock(monitor_mutex_);
    ending = std::move(monitor_);
  }
}

const Peer& JobFabric::peer_at(int rank) const {
  if (rank < 0 || rank >= size() || rank == options_.rank) {
    throw InvalidArgument("rank " + std::to_string(options_.rank) + " of " + std::to_string(size()) + " has no peer " +
                          std::to_string(rank));
  }
  return peers_[static_cast<std::size_t>(rank)];
}

bool JobFabric::share_memory(int a, int b) const {
  const auto reaches = [&](int from, int to) {
    const Peer& peer = peers_.at(static_cast<std::size_t>(from));
    return static_cast<std::size_t>(to) < peer.reached.size() && peer.reached[static_cast<std::size_t>(to)];
  };
  return a == b || (reaches(a, b) && reaches(b, a));
}

std::vector<std::string> JobFabric::hosts() const {
  std::vector<std::string> names;
  for (const Peer& peer : peers_) names.push_back(peer.peer_info.host);
  return names;
}

Link& JobFabric::connect(int rank, const std::string& channel, Deadline deadline) {
  const Peer& peer = peer_at(rank);
  links_.check_free(rank, channel);
  const BootstrapRequest request{.peer = rank,
                                 .peer_name = name_of(peer.peer_info),
                                 .channel = channel,
                                 .deadline = deadline,
                                 .aborted = &links_.aborted()};
  if (peer.shares_memory) return links_.add(channel, connect_shm(request, meet(request)));
  TcpLinkParts parts{.sockets = {},
                     .peer = rank,
                     .peer_name = request.peer_name,
                     .waker = &waker_,
                     .buffer_bytes = options_.tcp_buffer_bytes};
  if (options_.transport == TransportChoice::kMpi && !is_control_channel(channel)) {
    parts.kind = "mpi";
    parts.sockets.push_back(open_carried(request, options_.rank, meet(request), waker_, options_.carrier));
    return links_.add(channel, std::make_unique<TcpLink>(std::move(parts)));
  }
  // The fewer that one of the two wants; control messages are too small to share.
  const int wanted = std::min(options_.sockets_per_peer, peer.peer_info.sockets);
  const int count = is_control_channel(channel) ? 1 : std::max(wanted, 1);
  for (int number = 0; number < count; ++number) {
    BootstrapRequest one = request;
    if (number > 0) one.channel += "#" + std::to_string(number);
    Fd& socket = parts.sockets.emplace_back(meet(one));
    control_congestion(socket.get(), options_.tcp_congestion);
    if (is_control_channel(channel)) socket = encrypt(std::move(socket), side_to(rank), request.peer_name, deadline);
  }
  return links_.add(channel, std::make_unique<TcpLink>(std::move(parts)));
}

Fd JobFabric::meet(const BootstrapRequest& request) {
  if (side_to(request.peer) == Side::kListener) return bootstrap_->accept(request);
  const PeerInfo& at = peer_at(request.peer).peer_info;
  return bootstrap_->dial(request, at.address, at.port);
}

// The socket only carries the address of the segment; it closes when both sides have mapped it.
std::unique_ptr<Link> JobFabric::connect_shm(const BootstrapRequest& request, Fd socket) {
  const WatchScope scope(waker_, socket.get());
  const Peer& peer = peer_at(request.peer);
  const bool lower = options_.rank < request.peer;
  DuplexSegment segment = lower ? offer_segment(request, socket.get()) : take_segment(request, socket.get());
  segment.detach_fd();
  return std::make_unique<RingLink>(RingLinkParts{.kind = "shm",
                                                  .peer = request.peer,
                                                  .peer_name = request.peer_name,
                                                  .side = lower ? SegmentSide::kLower : SegmentSide::kHigher,
                                                  .segment = std::make_shared<const DuplexSegment>(std::move(segment)),
                                                  .peer_bell = peer.bell,
                                                  .waker = &waker_});
}

DuplexSegment JobFabric::offer_segment(const BootstrapRequest& request, int socket) {
  DuplexSegment segment = DuplexSegment::create(options_.shm_ring_bytes);
  ByteWriter address;
  address.i32(::getpid());
  address.i32(segment.fd());
  address.u64(segment.token());
  (void)write_some(socket, address.bytes());  // fits; a peer that is gone shows below
  std::array<std::byte, 1> mapped;
  read_exactly(request, waker_, socket, mapped);
  return segment;
}

DuplexSegment JobFabric::take_segment(const BootstrapRequest& request, int socket) {
  std::array<std::byte, kSegmentAddressBytes> bytes;
  read_exactly(request, waker_, socket, bytes);
  ByteReader reader(bytes);
  const int pid = reader.i32();
  const int fd = reader.i32();
  DuplexSegment segment = DuplexSegment::attach(pid, fd, reader.u64());
  const std::array<std::byte, 1> mapped{};
  (void)write_some(socket, mapped);
  return segment;
}

void JobFabric::start_monitor(PeerLostHandler handler) {
  const std::lock_guard lock(monitor_mutex_);
  RINGTUNE_CHECK(monitor_ == nullptr, "start_monitor() was called twice");
  if (size() > 1) {
    monitor_ = std::make_unique<Monitor>(rank(), size(), std::move(liveness_hub_), options_.silence_ns, waker_,
                                         std::move(handler), inquiry_);
  }
}

// Without the mutex: the monitor lives until the destructor, before which nobody asks any more.
Answers JobFabric::inquire(ByteView question, Deadline deadline) {
  Monitor* monitor = nullptr;
  {
    const std::lock_guard lock(monitor_mutex_);
    monitor = monitor_.get();
  }
  return monitor != nullptr ? monitor->ask(question, deadline) : Answers();
}

void JobFabric::end_inquiries() noexcept {
  const std::lock_guard lock(monitor_mutex_);
  if (monitor_) monitor_->end_inquiries();
}

void JobFabric::reply(int to, std::uint32_t number, ByteView answer) noexcept {
  const std::lock_guard lock(monitor_mutex_);
  if (monitor_) monitor_->reply(to, number, answer);
}

std::vector<int> JobFabric::stopped_neighbours() const {
  std::vector<int> ranks;
  const PeerInfo& own = peers_[static_cast<std::size_t>(rank())].peer_info;
  for (const Peer& peer : peers_) {
    const PeerInfo& at = peer.peer_info;
    if (at.rank != rank() && why_not_shared(own, at).empty() && is_stopped(at.waker.pid)) ranks.push_back(at.rank);
  }
  return ranks;
}

void JobFabric::leave() noexcept {
  const std::lock_guard lock(monitor_mutex_);
  if (monitor_) monitor_->leave();
}

void JobFabric::fail(const std::string& reason) noexcept {
  const std::lock_guard lock(monitor_mutex_);
  if (monitor_) monitor_->fail(reason);
}

bool JobFabric::wait_left(Deadline deadline) {
  while (true) {
    const std::uint32_t ticket = waker_.prepare();
    {
      const std::lock_guard lock(monitor_mutex_);
      if (!monitor_ || monitor_->alone()) return true;
    }
    if (deadline.expired()) return false;
    waker_.wait(ticket, deadline);
  }
}

void JobFabric::abort(const std::string& reason) noexcept {
  links_.abort(reason);
  waker_.notify();
}

}  // namespace

std::unique_ptr<Fabric> make_fabric(const FabricOptions& options, StoreClient* store, Deadline deadline) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    throw InvalidArgument("rank " + std::to_string(options.rank) + " does not exist in a job of " +
                          std::to_string(options.size));
  }
  return std::make_unique<JobFabric>(options, store, deadline);
}

}  // namespace ringtune
