#include "runtime/gpu/nccl_path.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "runtime/batch_log.h"
#include "runtime/batch_path.h"
#include "runtime/bootstrap.h"
#include "runtime/gpu/batch_times.h"
#include "runtime/gpu/lane.h"
#include "transport/thread.h"

namespace ringtune {
namespace {

constexpr std::chrono::milliseconds kLookInterval(20);  // how often NCCL is asked for errors while work is in streams

}  // namespace

/// What a member tells the others.
struct NcclPath::Card {
  std::array<char, 256> host{};
  std::array<char, 32> bus_id{};
  std::int32_t version = 0;
  NcclUniqueId id;  // of the first member
};

NcclPath::NcclPath(NcclPathOptions options) : options_(std::move(options)), fusion_(options_.kernels) {}

NcclPath::~NcclPath() { close(Deadline::after(0)); }

void NcclPath::begin(std::vector<std::string> hosts, std::function<void(std::exception_ptr)> on_failure) {
  hosts_ = std::move(hosts);
  on_failure_ = std::move(on_failure);
}

std::string NcclPath::refusal() {
  try {
    (void)library();
    return {};
  } catch (const DeviceError& error) {
    return error.what();
  }
}

void NcclPath::check() {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

void NcclPath::check_arrival(const CudaEvent& copied) {
  const std::lock_guard lock(mutex_);
  if (failure_ && !copied.reached()) std::rethrow_exception(failure_);
}

HostLayout NcclPath::layout_of(const BatchContext& context) const {
  std::vector<std::string> hosts;
  for (const int rank : context.communicator.members()) hosts.push_back(hosts_.at(static_cast<std::size_t>(rank)));
  return ringtune::layout_of(hosts, context.communicator.rank());
}

/// `first`: whether this rank is the first of those that are to connect.
NcclPath::Card NcclPath::own_card(const DeviceLane& lane, const BatchContext& context, bool first) {
  Card card;
  const Communicator& communicator = context.communicator;
  const int rank = communicator.members()[static_cast<std::size_t>(communicator.rank())];
  write(card.host, hosts_.at(static_cast<std::size_t>(rank)));
  write(card.bus_id, lane.device().driver().bus_id(lane.device().ordinal()));
  card.version = library().version();
  if (first) library().check(library().api().get_unique_id(&card.id), "ncclGetUniqueId");
  return card;
}

/// Why members cannot connect, by their cards: all of them, or those of each host with one another.
std::string NcclPath::find_refusal(const std::vector<Card>& cards, const Communicator& communicator,
                                   bool within_hosts) {
  for (std::size_t i = 0; i < cards.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const bool neighbours = cards[i].host == cards[j].host;
      if ((neighbours || !within_hosts) && cards[i].version != cards[j].version) {
        return rank_at(communicator, j) + " has NCCL " + nccl_version_text(cards[j].version) + ", " +
               rank_at(communicator, i) + " has " + nccl_version_text(cards[i].version) +
               ": install the same on all hosts";
      }
      if (!neighbours || cards[i].bus_id != cards[j].bus_id) continue;
      return rank_at(communicator, j) + " and " + rank_at(communicator, i) + " share the GPU " +
             cards[i].bus_id.data() + " of " + cards[i].host.data() + ", which NCCL does not support";
    }
  }
  return {};
}

/// The members tell one another what they have, and connect if that suffices. All reach the same decision.
void NcclPath::handshake(Set& set, const DeviceLane& lane, const BatchContext& context) {
  Communicator& communicator = context.communicator;
  set.rank = communicator.rank();
  set.size = communicator.size();
  const std::vector<Card> cards = ringtune::gather(own_card(lane, context, set.rank == 0), communicator);
  set.refusal = find_refusal(cards, communicator, false);
  if (set.refusal.empty()) connect(set, cards.front().id, context);
}

/// The same for connections of each host's members alone: where one host has none, no host uses them.
void NcclPath::handshake_within_hosts(Set& set, const DeviceLane& lane, const BatchContext& context) {
  Communicator& communicator = context.communicator;
  const HostLayout layout = layout_of(context);
  RINGTUNE_CHECK(layout.has_levels() && layout.homogeneous,
                 "one level of ranks, or hosts with unequal numbers of them");
  const auto own = std::find(layout.local.begin(), layout.local.end(), communicator.rank());
  set.rank = static_cast<int>(own - layout.local.begin());
  set.size = static_cast<int>(layout.local.size());
  const std::vector<Card> cards = ringtune::gather(own_card(lane, context, set.rank == 0), communicator);
  set.refusal = find_refusal(cards, communicator, true);
  if (set.refusal.empty()) connect(set, cards[static_cast<std::size_t>(layout.local.front())].id, context);
}

void NcclPath::connect(Set& set, const NcclUniqueId& id, const BatchContext& context) {
  Communicator& communicator = context.communicator;
  std::string trouble;
  try {
    set.communicator = std::make_shared<NcclCommunicator>(library(), id, set.rank, set.size);
    {
      const std::lock_guard lock(mutex_);
      if (failure_) std::rethrow_exception(failure_);
      communicators_.push_back(set.communicator);
    }
    set.communicator->settle(call_deadline());
  } catch (const std::exception& error) {
    check();
    trouble = error.what();
    log(LogLevel::kWarning, "process set ", context.process_set, ": ", trouble);
  }
  const std::vector<std::uint8_t> connected =
      ringtune::gather(static_cast<std::uint8_t>(trouble.empty()), communicator);
  const auto failed = std::find(connected.begin(), connected.end(), 0);
  if (failed == connected.end()) return;
  if (set.communicator != nullptr) {
    set.communicator->abort();
    const std::lock_guard lock(mutex_);
    std::erase(communicators_, set.communicator);  // the watcher must not ask it for errors
    set.communicator.reset();
  }
  set.refusal = "NCCL did not connect on " +
                rank_at(communicator, static_cast<std::size_t>(failed - connected.begin())) +
                (trouble.empty() ? "" : " (" + trouble + ")");
}

/// The key for the next batch. Batches of a set are counted here, with the same count on all members. The numbers of a
/// schedule's rounds would differ, since a declined round counts only where it was posted.
NcclPath::CommunicatorKey NcclPath::next_key(std::span<const OperationPtr> batch, const BatchContext& context) {
  const Request& request = batch.front()->request();
  return {context.process_set, request.place, dealt_[context.process_set]++ % streams_,
          request.data_path == DataPath::kHierarchical || request.data_path == DataPath::kAcross};
}

/// Needs the lock and the device's context.
CudaEvent& NcclPath::last_in(const CudaDevice& device, std::size_t stream) {
  for (const std::unique_ptr<Tail>& tail : tails_) {
    if (tail->device == &device && tail->stream == stream) return tail->last;
  }
  return tails_.emplace_back(new Tail{&device, stream, CudaEvent(device)})->last;
}

/// The stream has got work, which the watcher is to watch.
void NcclPath::launched(DeviceLane& lane, std::size_t stream) {
  const std::lock_guard lock(mutex_);
  last_in(lane.device(), stream).record(lane.transfer_stream(stream).handle());
  if (!std::exchange(busy_, true)) news_.notify_all();
}

void NcclPath::prepare(std::span<const OperationPtr> batch, const BatchContext& context) {
  check();
  key_ = next_key(batch, context);
  const auto [found, fresh] = sets_.try_emplace(key_);
  Set& set = found->second;
  if (fresh) {
    const DeviceLane& lane = lane_of(*batch.front());
    const CudaDevice::Current current(lane.device());
    key_.within_hosts ? handshake_within_hosts(set, lane, context) : handshake(set, lane, context);
    if (!watcher_.joinable()) watcher_ = start_thread("ringtune-nccl", [this] { watch(); });
  }
  if (!set.refusal.empty()) {
    throw DataPathRefused(set.refusal,
                          key_.within_hosts ? DataPath::kHierarchical : batch.front()->request().data_path);
  }
  packed_ = !key_.within_hosts && fusion_.prepare(batch, context, lane_of(*batch.front()).device(), key_.stream);
}

void NcclPath::launch(std::span<const OperationPtr> batch, const BatchContext& context,
                      const std::optional<Span>& about) {
  if (key_.within_hosts) {
    return batch.front()->request().data_path == DataPath::kHierarchical ? scatter(batch, about) : gather(batch, about);
  }
  DeviceLane& lane = lane_of(*batch.front());
  const CudaDevice::Current current(lane.device());
  const CommunicatorKey key = key_;  // as prepared
  CudaStream& stream = lane.transfer_stream(key.stream);
  BatchTimes times(lane, batch, about);
  try {
    for (const OperationPtr operation : batch) stream.wait(device_operation_of(*operation).ready);
    NcclCommunicator& communicator = *sets_.at(key).communicator;
    if (packed_) {
      put_packed(communicator, stream, batch, context, times);
    } else {
      TimedCopy timed = times.piece(Stage::kCommunicate, stream.handle());
      put_batch(communicator, stream, batch, context);
      timed.end();
    }
    for (const OperationPtr operation : batch) {
      DeviceOperation& of = device_operation_of(*operation);
      of.copied.record(stream.handle());
      if (of.received != nullptr) of.received->last_use.record(stream.handle());
    }
    launched(lane, key.stream);
  } catch (const std::exception&) {
    check();  // the error that ended the path says more than the error of this call
    throw;
  }
  const CollectiveKind kind = batch.front()->request().kind;
  const bool gathers = kind == CollectiveKind::kAllgather || kind == CollectiveKind::kAlltoall;
  std::size_t bytes = 0;
  for (const OperationPtr operation : batch) {
    bytes += gathers ? device_operation_of(*operation).received_bytes : operation->prepared->bytes;
  }
  times.finish(bytes, bus_factor(kind, context.communicator.size()));
}

void NcclPath::removed(std::uint32_t process_set) {
  const std::lock_guard lock(mutex_);
  dealt_.erase(process_set);
  fusion_.removed(process_set);
  auto gone = sets_.lower_bound(CommunicatorKey{process_set, 0, 0, false});
  while (gone != sets_.end() && gone->first.process_set == process_set) {
    if (gone->second.communicator != nullptr && gone->second.refusal.empty()) {
      std::erase(communicators_, gone->second.communicator);
      retired_.push_back(std::move(gone->second.communicator));
      news_.notify_all();
    }
    gone = sets_.erase(gone);
  }
}

void NcclPath::abort(const std::exception_ptr& error) noexcept {
  std::vector<std::shared_ptr<NcclCommunicator>> all;
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = error;
    all = communicators_;
    all.insert(all.end(), retired_.begin(), retired_.end());
  }
  for (const std::shared_ptr<NcclCommunicator>& one : all) one->abort();
}

/// The watcher's thread, which sleeps while no work is in streams.
void NcclPath::watch() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    std::vector<std::shared_ptr<NcclCommunicator>> gone = std::exchange(retired_, {});
    if (!gone.empty()) {
      lock.unlock();
      for (const std::shared_ptr<NcclCommunicator>& one : gone) one->finish(call_deadline());
      lock.lock();
      continue;
    }
    if (!busy_) {
      news_.wait(lock);
      continue;
    }
    const std::vector<std::shared_ptr<NcclCommunicator>> all = communicators_;
    lock.unlock();
    const bool busy = look_after(all);
    lock.lock();
    busy_ = busy_ && busy;
    if (busy_ && !ends_) news_.wait_for(lock, kLookInterval);
  }
}

/// Whether work goes on in streams, without error.
bool NcclPath::look_after(const std::vector<std::shared_ptr<NcclCommunicator>>& all) {
  try {
    for (const std::shared_ptr<NcclCommunicator>& one : all) (void)one->settled();
    const std::lock_guard lock(mutex_);  // no launch between this look and its answer
    return std::any_of(tails_.begin(), tails_.end(), [](const std::unique_ptr<Tail>& tail) {
      const CudaDevice::Current current(*tail->device);
      return !tail->last.reached();
    });
  } catch (const DeviceError&) {
    const std::exception_ptr error = std::current_exception();
    {
      const std::lock_guard lock(mutex_);
      if (failure_ || ends_) return false;  // the errors that were seen are a consequence
    }
    abort(error);
    on_failure_(error);
    return false;
  }
}

void NcclPath::close(Deadline timeout) noexcept {
  std::vector<std::shared_ptr<NcclCommunicator>> all;
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    all = communicators_;
  }
  news_.notify_all();
  if (watcher_.joinable()) watcher_.join();
  all.insert(all.end(), retired_.begin(), retired_.end());
  for (const std::shared_ptr<NcclCommunicator>& one : all) one->finish(timeout);
  sets_.clear();
  fusion_.close();
  {
    const std::lock_guard lock(mutex_);
    communicators_.clear();
    retired_.clear();
  }
  for (std::unique_ptr<Tail>& tail : tails_) {
    try {
      const CudaDevice::Current current(*tail->device);
      tail.reset();
    } catch (const std::exception&) {  // the driver has failed, and its objects are gone
      (void)tail.release();
    }
  }
  tails_.clear();
}

}  // namespace ringtune
