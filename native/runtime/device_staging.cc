#include "runtime/device_staging.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/futex.h"
#include "collective/reducescatter.h"
#include "runtime/executor.h"

namespace ringtune {
namespace {

// A ticket: the mark, the lane, a number that is not used twice, the slot.
constexpr unsigned kSlotBits = 20;
constexpr unsigned kLaneShift = 56;
constexpr std::size_t kMostLanes = 32;

bool is_gathered(CollectiveKind kind) noexcept {
  return kind == CollectiveKind::kAllgather || kind == CollectiveKind::kAlltoall;
}

/// Bytes of the result that belong into the submission's output.
std::size_t returned_bytes(const Submission& submission, std::span<const int> members, int rank) {
  const Request& request = submission.request;
  if (is_gathered(request.kind)) return 0;
  const bool keeps = request.kind == CollectiveKind::kBroadcast && request.root == rank;
  if (keeps && submission.input == submission.output) return 0;
  if (request.kind != CollectiveKind::kReducescatter) return byte_count(request);
  const auto own = static_cast<std::size_t>(std::find(members.begin(), members.end(), rank) - members.begin());
  const std::vector<std::int64_t> rows = cut_rows(request.shape.front(), static_cast<int>(members.size()));
  return static_cast<std::size_t>(rows[own]) * row_bytes_of(request);
}

/// Whether the tensor is the result already: nothing needs to be copied then.
bool is_its_own_result(const Submission& submission, std::size_t members) noexcept {
  const Request& request = submission.request;
  const bool reduces = request.kind == CollectiveKind::kAllreduce;
  return members == 1 && reduces && submission.input == submission.output && request.prescale == 1.0 &&
         request.postscale == 1.0 && !request.wire;
}

/// Elements of each part but the last: all ranks cut alike.
std::size_t part_elements(const Request& request) {
  const std::size_t count = element_count(request);
  const bool divides = request.kind == CollectiveKind::kAllreduce && request.op != ReduceOp::kAdasum;
  const std::size_t most = DeviceStaging::kPartBytes / size_of(request.dtype);
  return divides && count > most ? most : count;
}

void lay_out(DeviceOperation& operation, std::span<const int> members, int rank) {
  const Request& request = operation.prepared->request;
  const std::size_t count = operation.prepared->count;
  const std::size_t each = part_elements(request);
  const std::size_t item = size_of(request.dtype);
  const bool stays = is_its_own_result(operation.what, members.size());
  const bool sends = !stays && (request.kind != CollectiveKind::kBroadcast || request.root == rank);
  operation.part_count = each == 0 ? 1 : (count + each - 1) / each;
  while (operation.parts.size() < operation.part_count) operation.parts.push_back(std::make_unique<DevicePart>());
  for (std::size_t i = 0; i < operation.part_count; ++i) {
    DevicePart& part = *operation.parts[i];
    part.whole = &operation;
    part.begin = i * each * item;
    part.count = std::min(each, count - i * each);
    part.sent = sends ? part.count * item : 0;
    part.returned = stays ? 0 : part.count * item;
  }
  if (operation.part_count == 1 && !stays) operation.parts[0]->returned = returned_bytes(operation.what, members, rank);
}

}  // namespace

DeviceStaging::DeviceStaging(std::string driver, HostPlane host) : driver_path_(std::move(driver)) {
  shared_.host = std::move(host);
}

DeviceStaging::~DeviceStaging() { close(); }

DeviceLane& DeviceStaging::lane_of(int device, std::uint8_t& place) {
  const auto known =
      std::find_if(lanes_.begin(), lanes_.end(), [&](const auto& lane) { return lane->device().ordinal() == device; });
  place = static_cast<std::uint8_t>(known - lanes_.begin() + 1);
  if (known != lanes_.end()) return **known;
  if (lanes_.size() >= kMostLanes) throw DeviceError("a process can use at most 32 GPUs");
  return *lanes_.emplace_back(std::make_unique<DeviceLane>(shared_, CudaDriver::open(driver_path_), device));
}

Ticket DeviceStaging::submit(Submission submission, std::span<const int> members, int rank) {
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
  if (returned_bytes(submission, members, rank) > 0) device.check_owns(submission.output, what);
  if (!shared_.names.insert(key_of(submission.request)).second) {
    throw InvalidArgument("Duplicate tensor name '" + submission.request.name +
                          "': an operation of this name is still in flight on this rank. Wait for it (synchronize), or "
                          "give the operations different names.");
  }
  DeviceOperation& operation = lane.allocate();
  try {
    operation.what = std::move(submission);
    operation.prepared = std::make_shared<const Prepared>(operation.what.request);
    lay_out(operation, members, rank);
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

/// Null when there is none, or it was released.
DeviceOperation* DeviceStaging::look_up(Ticket ticket) noexcept {
  const auto lane = static_cast<std::size_t>((ticket & ~kMark) >> kLaneShift);
  const auto slot = static_cast<std::uint32_t>(ticket & ((Ticket{1} << kSlotBits) - 1));
  DeviceOperation* const found = owns(ticket) && lane < lanes_.size() ? lanes_[lane]->at(slot) : nullptr;
  return found == nullptr || found->ticket != ticket || found->abandoned ? nullptr : found;
}

DeviceOperation& DeviceStaging::at(Ticket ticket) {
  DeviceOperation* const found = look_up(ticket);
  if (found == nullptr) {
    throw InvalidArgument("Ticket " + std::to_string(ticket) + " was not created or has been cleared.");
  }
  return *found;
}

DeviceOperation& DeviceStaging::find(Ticket ticket) {
  const std::lock_guard lock(shared_.mutex);
  return at(ticket);
}

bool DeviceStaging::poll(Ticket ticket) { return find(ticket).done(); }

bool DeviceStaging::attend(Ticket ticket, Deadline deadline) {
  std::unique_lock lock(shared_.mutex);
  DeviceOperation& operation = at(ticket);
  if (operation.done()) return true;
  ++shared_.waiters;
  shared_.settle_haste();
  lock.unlock();
  while (!operation.done() && !deadline.expired()) {
    std::uint32_t seen = Operation::kPending;
    // Acquire on failure: it may be done. On success nothing is published but that somebody sleeps.
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

void DeviceStaging::join(Ticket ticket, CudaStreamHandle stream) {
  const std::lock_guard lock(shared_.mutex);
  const DeviceOperation& operation = at(ticket);
  const CudaDevice& device = operation.lane.device();
  const CudaDevice::Current current(device);
  device.check(device.api().stream_wait_event(stream, operation.copied.handle(), 0), "cuStreamWaitEvent");
}

void DeviceStaging::deliver(Ticket ticket, std::byte* memory, CudaStreamHandle stream) {
  const std::lock_guard lock(shared_.mutex);
  DeviceOperation& operation = at(ticket);
  if (operation.gathered.empty()) return;
  const CudaDevice& device = operation.lane.device();
  const CudaDevice::Current current(device);
  device.check_owns(memory, "the result of tensor '" + operation.prepared->request.name + "'");
  operation.lane.deliver(operation, memory, stream);
}

void DeviceStaging::release(Ticket ticket) {
  const std::lock_guard lock(shared_.mutex);
  DeviceOperation* const found = look_up(ticket);
  if (found == nullptr) return;
  if (found->done()) {
    found->lane.recycle(*found);
  } else {
    found->abandoned = true;
  }
}

void DeviceStaging::settle_times(Deadline deadline) {
  std::vector<DeviceLane*> lanes;
  {
    const std::lock_guard lock(shared_.mutex);
    for (const std::unique_ptr<DeviceLane>& lane : lanes_) lanes.push_back(lane.get());
  }
  for (DeviceLane* const lane : lanes) lane->settle_times(deadline);
}

void DeviceStaging::close() {
  {
    const std::lock_guard lock(shared_.mutex);
    closed_ = true;
  }
  for (const std::unique_ptr<DeviceLane>& lane : lanes_) lane->close();
}

}  // namespace ringtune
