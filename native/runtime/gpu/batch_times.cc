#include "runtime/gpu/batch_times.h"

#include <utility>
#include <vector>

#include "runtime/gpu/lane.h"

namespace ringtune {

BatchTimes::BatchTimes(DeviceLane& lane, std::span<const OperationPtr> batch, const std::optional<Span>& about)
    : lane_(lane) {
  if (!about) return;
  std::vector<DeviceTimes*> tensors;
  for (const OperationPtr operation : batch) {
    if (DeviceTimes* const times = std::exchange(device_operation_of(*operation).times, nullptr)) {
      tensors.push_back(times);
    }
  }
  if (tensors.empty()) return;
  Span span = *about;
  span.peer = lane.device().ordinal();
  times_ = lane.recorder().take(span);
  if (times_ != nullptr) {
    times_->tensors = std::move(tensors);
    return;
  }
  for (DeviceTimes* const tensor : tensors) lane.recorder().drop(*tensor);
}

BatchTimes::BatchTimes(DeviceLane& lane, const std::optional<Span>& about) : lane_(lane) {
  if (!about) return;
  Span span = *about;
  span.peer = lane.device().ordinal();
  times_ = lane.time_batch(span);
}

BatchTimes::~BatchTimes() {
  if (times_ != nullptr) lane_.recorder().drop(*times_);
}

TimedCopy BatchTimes::piece(Stage stage, CudaStreamHandle stream) const {
  return {times_ == nullptr ? nullptr : &times_->lasted, lane_.device(), stream, 0, stage};
}

void BatchTimes::finish(std::size_t bytes, double bus_factor) {
  if (times_ == nullptr) return;
  times_->about.bytes = bytes;
  times_->bus_factor = bus_factor;
  lane_.recorder().finished(*std::exchange(times_, nullptr));
}

}  // namespace ringtune
