#include "runtime/gpu/peer_ring_path.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "device/cuda_ipc.h"
#include "device/device_kernels.h"
#include "fusion/plan.h"
#include "runtime/batch_log.h"
#include "runtime/batch_path.h"
#include "runtime/bootstrap.h"
#include "runtime/gpu/batch_times.h"
#include "runtime/gpu/lane.h"
#include "runtime/gpu/ring_set.h"
#include "runtime/rows.h"
#include "transport/thread.h"

namespace ringtune {
namespace {

const CudaDevice& device_of(const Operation& operation) { return device_operation_of(operation).lane.device(); }

/// A member's last message: why it has not connected, empty when it has.
struct Outcome {
  std::array<char, 256> trouble{};
};

}  // namespace

/// A member's first message to the others.
struct PeerRingPath::Card {
  std::array<char, 256> host{};
  std::array<char, 32> bus_id{};
  std::uint8_t shares_gpus = 0;
  std::uint64_t buffer_bytes = 0;
  std::array<char, 256> refusal{};
};

PeerRingPath::PeerRingPath(PeerRingPathOptions options) : options_(std::move(options)) {}

PeerRingPath::~PeerRingPath() { close(Deadline::after(0)); }

void PeerRingPath::rethrow_failure() {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

void PeerRingPath::check_arrival(const CudaEvent& copied) {
  const std::lock_guard lock(mutex_);
  if (failure_ && !copied.reached()) std::rethrow_exception(failure_);
}

/// The processes on a GPU take turns of some milliseconds there, and a ring waits for several in each collective: in
/// training on an H200 it was 2.5 times slower than copies through the host.
std::string PeerRingPath::refusal_of_shared_gpus(const std::vector<Card>& cards, const BatchContext& context) {
  if (std::ranges::all_of(cards, [](const Card& card) { return card.shares_gpus != 0; })) return {};
  for (std::size_t i = 0; i < cards.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (cards[i].bus_id != cards[j].bus_id) continue;
      return rank_at(context.communicator, j) + " and " + rank_at(context.communicator, i) + " share the GPU " +
             cards[i].bus_id.data() + ", where they take turns that a ring would wait for";
    }
  }
  return {};
}

/// The size of all buffers, or why there will be no ring.
std::size_t PeerRingPath::compare(const std::vector<Card>& cards, const BatchContext& context,
                                  std::string& refusal) const {
  refusal = first_complaint(cards, &Card::refusal, context.communicator);
  std::size_t bytes = options_.buffer_bytes;
  for (std::size_t i = 0; i < cards.size() && refusal.empty(); ++i) {
    bytes = std::min(bytes, cards[i].buffer_bytes);
    if (cards[i].host == cards.front().host) continue;
    refusal = rank_at(context.communicator, 0) + " is on " + cards.front().host.data() + ", " +
              rank_at(context.communicator, i) + " on " + cards[i].host.data() + ": a ring is of GPUs of one host";
  }
  if (refusal.empty()) refusal = refusal_of_shared_gpus(cards, context);
  return bytes;
}

/// The members tell one another what they have, and connect if that suffices. All reach the same decision.
void PeerRingPath::handshake(Place& place, const CudaDevice& device, const BatchContext& context) {
  Communicator& communicator = context.communicator;
  Card card;
  write(card.host, host_);
  write(card.bus_id, device.driver().bus_id(device.ordinal()));
  card.shares_gpus = options_.shares_gpus ? 1 : 0;
  card.buffer_bytes = options_.buffer_bytes / kFusionAlignment * kFusionAlignment;
  write(card.refusal, stream_word_refusal(device));
  const std::size_t bytes = compare(gather(card, communicator), context, place.refusal);
  if (!place.refusal.empty()) return;

  std::shared_ptr<DeviceRingSet> ring;
  RingOffer offer;
  try {
    const DeviceRingSet::Seat seat{communicator.rank(), communicator.size(), bytes};
    device_ = &device;
    ring = std::make_shared<DeviceRingSet>(device, options_.kernels.on(device), seat);
    offer = ring->offer();
  } catch (const Error& error) {
    write(offer.refusal, error.what());
  }
  const std::vector<RingOffer> offers = gather(offer, communicator);
  place.refusal = first_complaint(offers, &RingOffer::refusal, communicator);
  if (!place.refusal.empty()) return;

  Outcome outcome;
  try {
    ring->connect(offers);
  } catch (const Error& error) {
    write(outcome.trouble, error.what());
  }
  place.refusal = first_complaint(gather(outcome, communicator), &Outcome::trouble, communicator);
  if (!place.refusal.empty()) return;
  ring->all_connected();
  place.ring = std::move(ring);
}

void PeerRingPath::prepare(std::span<const OperationPtr> batch, const BatchContext& context) {
  rethrow_failure();
  const auto [found, fresh] = sets_.try_emplace(context.process_set);
  Place& place = found->second;
  if (fresh) {
    const CudaDevice& device = device_of(*batch.front());
    const CudaDevice::Current current(device);
    handshake(place, device, context);
    const std::lock_guard lock(mutex_);
    if (place.ring != nullptr) rings_.push_back(place.ring);
  }
  if (place.ring == nullptr) throw DataPathRefused(place.refusal, DataPath::kRing);
}

void PeerRingPath::put_batch(DeviceRingSet& ring, std::span<const OperationPtr> batch, const BatchContext& context,
                             const BatchTimes& times) {
  const OperationPtr first = batch.front();
  switch (first->request().kind) {
    case CollectiveKind::kAllreduce:
      return ring.allreduce(batch, times);
    case CollectiveKind::kReducescatter:
      return ring.reducescatter(first, times);
    case CollectiveKind::kAllgather: {
      const MemberBytes bytes = agree_on_allgather(*first, context);
      DeviceOperation& of = device_operation_of(*first);
      std::byte* const gathered = of.lane.receive(of, bytes.all_received(), ring.stream());
      return ring.allgather(*first, bytes.received, gathered, times);
    }
    default:
      TimedCopy timed = times.piece(Stage::kCommunicate, ring.stream().handle());
      ring.broadcast(*first, context.communicator.position_of(first->request().root));
      timed.end();
  }
}

void PeerRingPath::launch(std::span<const OperationPtr> batch, const BatchContext& context,
                          const std::optional<Span>& about) {
  rethrow_failure();
  DeviceLane& lane = device_operation_of(*batch.front()).lane;
  const CudaDevice::Current current(lane.device());
  DeviceRingSet& ring = *sets_.at(context.process_set).ring;
  BatchTimes times(lane, batch, about);
  try {
    for (const OperationPtr operation : batch) ring.stream().wait(device_operation_of(*operation).ready);
    put_batch(ring, batch, context, times);
    for (const OperationPtr operation : batch) {
      DeviceOperation& of = device_operation_of(*operation);
      of.copied.record(ring.stream().handle());
      if (of.received != nullptr) of.received->last_use.record(ring.stream().handle());
    }
  } catch (const std::exception&) {
    rethrow_failure();  // the error that ended the path says more than the error of this call
    throw;
  }
  const CollectiveKind kind = batch.front()->request().kind;
  std::size_t bytes = 0;
  for (const OperationPtr operation : batch) {
    const bool gathers = kind == CollectiveKind::kAllgather;
    bytes += gathers ? device_operation_of(*operation).received_bytes : operation->prepared->bytes;
  }
  times.finish(bytes, bus_factor(kind, context.communicator.size()));
}

void PeerRingPath::removed(std::uint32_t process_set) {
  const auto gone = sets_.find(process_set);
  if (gone == sets_.end()) return;
  if (gone->second.ring != nullptr) {
    const std::lock_guard lock(mutex_);
    retired_.push_back(std::move(gone->second.ring));
    if (!retiring_.joinable() && !ends_) retiring_ = start_thread("ringtune-rings", [this] { retire(); });
    news_.notify_all();
  }
  sets_.erase(gone);
}

/// Ends the rings of removed sets. Their streams run to the end first. The thread of its own is there because freeing
/// memory waits for the whole device.
void PeerRingPath::retire() {
  std::unique_lock lock(mutex_);
  while (true) {
    news_.wait(lock, [&] { return ends_ || !retired_.empty(); });
    if (ends_) return;
    std::shared_ptr<DeviceRingSet> ring = std::move(retired_.back());
    retired_.pop_back();
    lock.unlock();
    finish(std::move(ring), Deadline::after(options_.timeout_ns));
    lock.lock();
  }
}

void PeerRingPath::abort(const std::exception_ptr& error) noexcept {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = error;
  for (const std::shared_ptr<DeviceRingSet>& ring : rings_) ring->abort();
}

/// Only abort() may still use the ring then.
void PeerRingPath::finish(std::shared_ptr<DeviceRingSet> ring, Deadline deadline) noexcept {
  std::optional<CudaDevice::Current> current;
  try {
    current.emplace(*device_);
    ring->finish(deadline);
  } catch (const std::exception& error) {  // the driver fails; the results of its calls below are ignored
    log(LogLevel::kDebug, "a ring between GPUs ends in disorder: ", error.what());
  }
  {
    const std::lock_guard lock(mutex_);
    std::erase(rings_, ring);
  }
  ring.reset();
}

void PeerRingPath::close(Deadline timeout) noexcept {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  news_.notify_all();
  if (retiring_.joinable()) retiring_.join();
  if (device_ == nullptr) return;
  std::vector<std::shared_ptr<DeviceRingSet>> all;
  {
    const std::lock_guard lock(mutex_);
    all = rings_;
  }
  retired_.clear();
  sets_.clear();
  for (std::shared_ptr<DeviceRingSet>& ring : all) finish(std::move(ring), timeout);
  device_ = nullptr;
}

bool ring_carries(const Request& request) noexcept {
  switch (request.kind) {
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kAllgather:
      return true;
    case CollectiveKind::kAllreduce:
    case CollectiveKind::kReducescatter:
      break;
    default:
      return false;
  }
  if (request.op == ReduceOp::kAdasum) return false;
  const bool scales = request.op == ReduceOp::kAverage || request.prescale != 1.0 || request.postscale != 1.0;
  return request.dtype != DType::kBool || !scales;
}

}  // namespace ringtune
