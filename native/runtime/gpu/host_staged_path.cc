#include "runtime/gpu/host_staged_path.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/futex.h"

namespace ringtune {
namespace {

// A ticket: the mark, the lane, a number that is not used twice, the slot.
constexpr unsigned kSlotBits = 20;
constexpr unsigned kLaneShift = 56;
constexpr std::size_t kMostLanes = 32;

}  // namespace

HostStagedPath::HostStagedPath(std::string driver, HostDataPath host, DevicePaths& data_paths)
    : driver_path_(std::move(driver)), data_paths_(data_paths), shared_(std::move(host), data_paths) {}

HostStagedPath::~HostStagedPath() { close(); }

DeviceLane& HostStagedPath::lane_of(int device, std::uint8_t& place) {
  const auto known =
      std::find_if(lanes_.begin(), lanes_.end(), [&](const auto& lane) { return lane->device().ordinal() == device; });
  place = static_cast<std::uint8_t>(known - lanes_.begin() + 1);
  if (known != lanes_.end()) return **known;
  if (lanes_.size() >= kMostLanes) throw DeviceError("a process can use at most 32 GPUs");
  return *lanes_.emplace_back(std::make_unique<DeviceLane>(shared_, CudaDriver::open(driver_path_), device));
}

Ticket HostStagedPath::submit(Submission submission, std::span<const int> members, int rank) {
  const DevicePlace place = submission.device.value();
  const std::lock_guard lock(shared_.mutex);
  if (closed_) throw ShutDown("ringtune has been shut down on this rank; call init() again to go on");
  DeviceLane& lane = lane_of(place.device, submission.request.place);
  const CudaDevice& device = lane.device();
  const CudaDevice::Current current(device);
  const std::string what = "tensor '" + submission.request.name + "'";
  device.check_not_capturing(place.stream, what);
  if (submission.request.kind == CollectiveKind::kBarrier) throw InvalidArgument("a barrier has no tensor");
  if (byte_count(submission.request) > 0) device.check_owns(submission.input, what);
  const StagedShape shape = staged_shape(submission, members, rank);
  if (shape.returned > 0) device.check_owns(submission.output, what);
  if (!shared_.names.insert(key_of(submission.request)).second) {
    throw InvalidArgument("Duplicate tensor name '" + submission.request.name +
                          "': an operation of this name is still in flight on this rank. Wait for it (synchronize), or "
                          "give the operations different names.");
  }
  DeviceOperation& operation = lane.allocate();
  try {
    operation.what = std::move(submission);
    operation.prepared = std::make_shared<const Prepared>(operation.what.request);
    operation.shape = shape;
    operation.spread = data_paths_.spread_of(operation.what.request.process_set, members);
    operation.data_path = data_paths_.data_path_of(operation.what.request, operation.spread);
    operation.lay_out(shared_.part_bytes);
    lane.begin(operation, place.stream);
  } catch (...) {
    shared_.names.erase(key_of(operation.what.request));
    lane.recycle(operation);
    throw;
  }
  const auto index = static_cast<Ticket>(operation.prepared->request.place - 1);
  operation.ticket = kMark | (index << kLaneShift) | (generation_++ << kSlotBits) | operation.slot;
  return operation.ticket;
}

/// Null for a ticket that is none, or was released.
DeviceOperation* HostStagedPath::look_up(Ticket ticket) noexcept {
  const auto lane = static_cast<std::size_t>((ticket & ~kMark) >> kLaneShift);
  const auto slot = static_cast<std::uint32_t>(ticket & ((Ticket{1} << kSlotBits) - 1));
  DeviceOperation* const found = owns(ticket) && lane < lanes_.size() ? lanes_[lane]->at(slot) : nullptr;
  return found == nullptr || found->ticket != ticket || found->abandoned ? nullptr : found;
}

DeviceOperation& HostStagedPath::at(Ticket ticket) {
  DeviceOperation* const found = look_up(ticket);
  if (found == nullptr) {
    throw InvalidArgument("Ticket " + std::to_string(ticket) + " was not created or has been cleared.");
  }
  return *found;
}

DeviceOperation& HostStagedPath::find(Ticket ticket) {
  const std::lock_guard lock(shared_.mutex);
  return at(ticket);
}

bool HostStagedPath::poll(Ticket ticket) { return find(ticket).done(); }

bool HostStagedPath::attend(Ticket ticket, Deadline deadline) {
  std::unique_lock lock(shared_.mutex);
  DeviceOperation& operation = at(ticket);
  if (operation.done()) return true;
  ++shared_.waiters;
  shared_.settle_haste();
  lock.unlock();
  while (!operation.done() && !deadline.expired()) {
    std::uint32_t seen = Operation::kPending;
    // Acquire on failure: the operation may be done. On success the only thing published is that a thread sleeps.
    if (operation.state.compare_exchange_strong(seen, Operation::kAwaited, std::memory_order_acquire) ||
        seen == Operation::kAwaited) {
      futex_wait(operation.state, Operation::kAwaited, deadline, FutexScope::kPrivate);
    }
  }
  lock.lock();
  --shared_.waiters;
  shared_.settle_haste();
  return operation.done();
}

void HostStagedPath::join(Ticket ticket, CudaStreamHandle stream) {
  const std::lock_guard lock(shared_.mutex);
  const DeviceOperation& operation = at(ticket);
  const CudaDevice::Current current(operation.lane.device());
  if (operation.direct()) data_paths_.check_arrival(operation.data_path, operation.copied);
  operation.lane.join(operation, stream);
}

void HostStagedPath::deliver(Ticket ticket, std::byte* memory, CudaStreamHandle stream) {
  const std::lock_guard lock(shared_.mutex);
  DeviceOperation& operation = at(ticket);
  if (operation.gathered.empty() && operation.received == nullptr) return;
  const CudaDevice& device = operation.lane.device();
  const CudaDevice::Current current(device);
  if (operation.direct()) data_paths_.check_arrival(operation.data_path, operation.copied);
  device.check_owns(memory, "the result of tensor '" + operation.prepared->request.name + "'");
  operation.lane.deliver(operation, memory, stream);
}

void HostStagedPath::release(Ticket ticket) {
  const std::lock_guard lock(shared_.mutex);
  DeviceOperation* const found = look_up(ticket);
  if (found == nullptr) return;
  if (found->done()) {
    found->lane.recycle(*found);
  } else {
    found->abandoned = true;
  }
}

void HostStagedPath::settle_times(Deadline deadline) {
  std::vector<DeviceLane*> lanes;
  {
    const std::lock_guard lock(shared_.mutex);
    for (const std::unique_ptr<DeviceLane>& lane : lanes_) lanes.push_back(lane.get());
  }
  for (DeviceLane* const lane : lanes) lane->settle_times(deadline);
}

void HostStagedPath::close() {
  {
    const std::lock_guard lock(shared_.mutex);
    closed_ = true;
  }
  for (const std::unique_ptr<DeviceLane>& lane : lanes_) lane->close();
}

}  // namespace ringtune
