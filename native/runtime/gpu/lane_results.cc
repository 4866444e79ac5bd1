// Results reach the program's streams: a stream waits for one, and gathered bytes are copied into the program's memory.
#include <algorithm>

#include "runtime/gpu/lane.h"

namespace ringtune {

void DeviceLane::join(const DeviceOperation& operation, CudaStreamHandle stream) {
  DeviceTimes* const times = take_times(*operation.prepared, Stage::kDeviceWait);
  try {
    TimedCopy timed(times == nullptr ? nullptr : &times->lasted, device_, stream, 0);
    device_.check(device_.api().stream_wait_event(stream, operation.copied.handle(), 0), "cuStreamWaitEvent");
    timed.end();
  } catch (...) {
    if (times != nullptr) streams_->recorder->drop(*times);
    throw;
  }
  if (times != nullptr) streams_->recorder->finished(*times);
}

std::byte* DeviceLane::receive(DeviceOperation& operation, std::size_t bytes, CudaStream& stream) {
  const std::lock_guard lock(shared_.mutex);
  operation.received_bytes = bytes;
  if (bytes == 0) return nullptr;
  operation.received = &streams_->received.take(bytes);
  stream.wait(operation.received->last_use);
  return operation.received->data;
}

void DeviceLane::deliver(const DeviceOperation& operation, std::byte* memory, CudaStreamHandle stream) {
  const auto to = reinterpret_cast<CudaAddress>(memory);
  if (operation.received != nullptr) {
    join(operation, stream);
    const auto from = reinterpret_cast<CudaAddress>(operation.received->data);
    device_.check(device_.api().copy_on_device(to, from, operation.received_bytes, stream), "cuMemcpyDtoDAsync");
    operation.received->last_use.record(stream);
    return;
  }
  const std::size_t bytes = operation.gathered.size();
  PinnedBlock& block = streams_->pool.take_idle(bytes);
  try {
    std::copy_n(operation.gathered.data(), bytes, block.data);
    device_.check(device_.api().copy_to_device(to, block.data, bytes, stream), "cuMemcpyHtoDAsync");
    block.last_use.record(stream);
  } catch (...) {
    streams_->pool.give_back(block);
    throw;
  }
  streams_->pool.give_back(block);
}

}  // namespace ringtune
