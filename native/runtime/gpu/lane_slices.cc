// The slices of tensors that NCCL reduces within hosts: the runtime reduces them across hosts, in pinned memory.
#include <utility>

#include "runtime/gpu/lane.h"

namespace ringtune {

void DeviceLane::take_slice(DeviceOperation& operation, const HostSlice& slice, CudaStream& stream) {
  const std::size_t bytes = slice.count() * size_of(operation.prepared->request.dtype);
  const std::lock_guard lock(shared_.mutex);
  operation.slice = slice;
  operation.scattered = &streams_->received.take(bytes);
  stream.wait(operation.scattered->last_use);
  PinnedBlock*& block = operation.parts.front()->block;
  block = &streams_->pool.take(bytes);
  streams_->input.wait(block->last_use);  // the copy back from it may still be under way
}

void DeviceLane::slices_to_host(std::span<const OperationPtr> batch, CudaStream& stream, DeviceTimes::Copies* times) {
  CudaStream& input = streams_->input;
  std::size_t bytes = 0;
  for (const OperationPtr operation : batch) {
    const DeviceOperation& of = device_operation_of(*operation);
    bytes += of.slice.count() * size_of(operation->request().dtype);
    of.scattered->last_use.record(stream.handle());
  }
  input.wait(device_operation_of(*batch.front()).scattered->last_use);  // all are of one call
  TimedCopy timed(times, device_, input.handle(), bytes);
  for (const OperationPtr operation : batch) {
    const DeviceOperation& of = device_operation_of(*operation);
    input.copy_to_host(of.parts.front()->block->data, of.scattered->data,
                       of.slice.count() * size_of(operation->request().dtype));
  }
  timed.end();
  for (const OperationPtr operation : batch) {
    const DeviceOperation& of = device_operation_of(*operation);
    of.scattered->last_use.record(input.handle());
    of.parts.front()->block->last_use.record(input.handle());
  }
}

void DeviceLane::slices_to_device(std::span<const OperationPtr> batch, CudaStream& stream, DeviceTimes::Copies* times) {
  CudaStream& output = streams_->output;
  std::size_t bytes = 0;
  for (const OperationPtr operation : batch) {
    bytes += device_operation_of(*operation).slice.count() * size_of(operation->request().dtype);
  }
  TimedCopy timed(times, device_, output.handle(), bytes);
  for (const OperationPtr operation : batch) {
    const DeviceOperation& of = device_operation_of(*operation);
    const std::size_t item = size_of(operation->request().dtype);
    auto* const result = static_cast<std::byte*>(of.what.output);
    const std::byte* const memory = of.parts.front()->block->data;
    output.copy_to_device(result + of.slice.begin * item, memory, of.slice.share * item);
    output.copy_to_device(result + of.slice.rest_begin * item, memory + of.slice.share * item, of.slice.rest * item);
  }
  timed.end();
  for (const OperationPtr operation : batch) {
    device_operation_of(*operation).parts.front()->block->last_use.record(output.handle());
  }
  stream.wait(device_operation_of(*batch.back()).parts.front()->block->last_use);
}

/// The copy of its slice to the host has begun: from here on the input thread takes care of it.
void DeviceLane::begin_crossing(DeviceOperation& operation) {
  operation.crosses = true;
  operation.staged = operation.submitted = operation.ended = 0;
  operation.all_staged = false;
  ++shared_.unstaged;
  incoming_.push_back(&operation);
  input_news_.notify_one();
}

/// Gives back the slice's memory, which is free behind the last operation that uses it. Idempotent.
void DeviceLane::end_crossing(DeviceOperation& operation) {
  operation.crosses = false;
  if (MemoryBlock* const block = std::exchange(operation.scattered, nullptr)) {
    streams_->received.give_back(*block);
    give_back_blocks(operation, 0);
  }
}

}  // namespace ringtune
