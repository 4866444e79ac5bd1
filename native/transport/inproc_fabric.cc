// Fabrics whose ranks are threads of one process: rings in private memory, bells that are the peers' own wakers.
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "transport/fabric.h"
#include "transport/link_table.h"
#include "transport/ring_link.h"
#include "transport/shared_waker.h"

namespace ringtune {
namespace {

/// What the ranks share. Outlives each fabric; `mutex` guards all but the wakers, which are only read.
struct World {
  explicit World(int count, std::size_t bytes) : size(count), ring_bytes(bytes) {}

  const int size;
  const std::size_t ring_bytes;
  std::vector<std::shared_ptr<SharedWaker>> wakers;
  std::mutex mutex;
  std::map<std::tuple<int, int, std::string>, std::shared_ptr<const DuplexSegment>> segments;
  std::map<int, PeerLostHandler> handlers;  // of ranks with a monitor
  std::vector<bool> gone = std::vector<bool>(static_cast<std::size_t>(size));
};

class InprocFabric final : public Fabric {
 public:
  InprocFabric(std::shared_ptr<World> world, int rank) : world_(std::move(world)), rank_(rank) {}
  ~InprocFabric() override {
    links_.clear();
    depart("rank " + std::to_string(rank_) + " ended without leaving the job");
  }

  [[nodiscard]] int rank() const noexcept override { return rank_; }
  [[nodiscard]] int size() const noexcept override { return world_->size; }
  [[nodiscard]] Waker& waker() noexcept override { return own_waker(); }
  [[nodiscard]] bool share_memory(int /*a*/, int /*b*/) const override { return true; }
  void ring(int peer) noexcept override { world_->wakers[static_cast<std::size_t>(peer)]->notify(); }
  [[nodiscard]] std::string_view viable(int peer) const override {
    check_peer(peer);
    return "inproc";
  }
  [[nodiscard]] std::vector<std::string> hosts() const override {
    return std::vector<std::string>(static_cast<std::size_t>(size()), "localhost");
  }
  Link& connect(int peer, const std::string& channel, Deadline deadline) override;
  void start_monitor(PeerLostHandler handler) override;
  void leave() noexcept override { depart(""); }
  void fail(const std::string& reason) noexcept override { depart(reason); }
  void close(const std::string& prefix) noexcept override { links_.close(prefix); }
  [[nodiscard]] bool wait_left(Deadline deadline) override;
  void add_abortable(const std::shared_ptr<Abortable>& abortable) override { links_.add_abortable(abortable); }
  void abort(const std::string& reason) noexcept override {
    links_.abort(reason);
    own_waker().notify();
  }

 private:
  [[nodiscard]] SharedWaker& own_waker() const noexcept { return *world_->wakers[static_cast<std::size_t>(rank_)]; }
  void check_peer(int peer) const;
  std::shared_ptr<const DuplexSegment> meet(int peer, const std::string& channel);
  void wait_joined(const DuplexSegment& segment, SegmentSide side, int peer, const std::string& channel,
                   Deadline deadline);
  void depart(const std::string& reason) noexcept;

  std::shared_ptr<World> world_;
  int rank_;
  LinkTable links_;
};

void InprocFabric::check_peer(int peer) const {
  if (peer < 0 || peer >= size() || peer == rank_) {
    throw InvalidArgument("rank " + std::to_string(rank_) + " of " + std::to_string(size()) + " has no peer " +
                          std::to_string(peer));
  }
}

std::shared_ptr<const DuplexSegment> InprocFabric::meet(int peer, const std::string& channel) {
  const auto [low, high] = std::minmax(rank_, peer);
  const std::lock_guard lock(world_->mutex);
  auto& slot = world_->segments[{low, high, channel}];
  if (!slot) {
    DuplexSegment segment = DuplexSegment::create(world_->ring_bytes);
    segment.detach_fd();
    slot = std::make_shared<const DuplexSegment>(std::move(segment));
  }
  return slot;
}

void InprocFabric::wait_joined(const DuplexSegment& segment, SegmentSide side, int peer, const std::string& channel,
                               Deadline deadline) {
  while (true) {
    const std::uint32_t ticket = own_waker().prepare();
    if (segment.joined(other(side))) return;
    links_.aborted().check(peer);
    if (deadline.expired()) {
      throw Timeout("rank " + std::to_string(peer) + " did not open channel '" + channel + "' to rank " +
                    std::to_string(rank_) + " in time");
    }
    own_waker().wait(ticket, deadline);
  }
}

Link& InprocFabric::connect(int peer, const std::string& channel, Deadline deadline) {
  check_peer(peer);
  links_.check_free(peer, channel);
  const std::shared_ptr<Bell> bell = world_->wakers[static_cast<std::size_t>(peer)];
  const SegmentSide side = rank_ < peer ? SegmentSide::kLower : SegmentSide::kHigher;
  const std::shared_ptr<const DuplexSegment> segment = meet(peer, channel);
  segment->mark_joined(side, true);
  bell->notify();
  try {
    wait_joined(*segment, side, peer, channel, deadline);
  } catch (...) {
    segment->mark_joined(side, false);
    throw;
  }
  return links_.add(channel, std::make_unique<RingLink>(RingLinkParts{.kind = "inproc",
                                                                      .peer = peer,
                                                                      .peer_name = "rank " + std::to_string(peer),
                                                                      .side = side,
                                                                      .segment = segment,
                                                                      .peer_bell = bell,
                                                                      .waker = &own_waker()}));
}

void InprocFabric::start_monitor(PeerLostHandler handler) {
  const std::lock_guard lock(world_->mutex);
  world_->handlers[rank_] = std::move(handler);
}

// An empty reason is a clean departure. Handlers run under the mutex: a fabric that ends at the same time waits for the
// handler that may still abort it.
void InprocFabric::depart(const std::string& reason) noexcept {
  {
    const std::lock_guard lock(world_->mutex);
    world_->handlers.erase(rank_);
    if (world_->gone[static_cast<std::size_t>(rank_)]) return;
    world_->gone[static_cast<std::size_t>(rank_)] = true;
    if (!reason.empty()) {
      for (const auto& [peer, handler] : world_->handlers) handler(rank_, reason);
    }
  }
  world_->wakers.front()->notify();
}

bool InprocFabric::wait_left(Deadline deadline) {
  if (rank_ != 0) return true;
  while (true) {
    const std::uint32_t ticket = own_waker().prepare();
    {
      const std::lock_guard lock(world_->mutex);
      if (std::count(world_->gone.begin() + 1, world_->gone.end(), false) == 0) return true;
    }
    if (deadline.expired()) return false;
    own_waker().wait(ticket, deadline);
  }
}

}  // namespace

std::vector<std::unique_ptr<Fabric>> make_inproc_fabrics(int size, std::size_t ring_bytes) {
  auto world = std::make_shared<World>(size, ring_bytes);
  const std::int64_t spin_ns = default_spin_ns(std::vector(static_cast<std::size_t>(size), usable_cores()));
  for (int rank = 0; rank < size; ++rank) {
    world->wakers.push_back(std::make_shared<SharedWaker>(WakerReach::kProcess, spin_ns));
  }
  std::vector<std::unique_ptr<Fabric>> fabrics;
  for (int rank = 0; rank < size; ++rank) fabrics.push_back(std::make_unique<InprocFabric>(world, rank));
  return fabrics;
}

}  // namespace ringtune
