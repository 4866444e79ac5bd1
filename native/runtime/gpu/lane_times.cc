// Which operations and batches of a lane are timed by the GPU's clock.
#include <memory>
#include <optional>
#include <utility>

#include "runtime/gpu/lane.h"

namespace ringtune {

/// Costs one branch while nothing is recorded.
DeviceTimes* DeviceLane::take_times(const Prepared& prepared, Stage stage) {
  if (!shared_.host.recorded) return nullptr;
  std::optional<Span> about = shared_.host.recorded(prepared);
  if (!about) return nullptr;
  about->stage = stage;
  about->peer = device_.ordinal();
  if (streams_->recorder == nullptr) {
    streams_->recorder = std::make_unique<DeviceRecorder>(*shared_.host.tracer, device_);
  }
  return streams_->recorder->take(*about);
}

DeviceTimes* DeviceLane::time_batch(const Span& about) {
  const std::lock_guard lock(shared_.mutex);
  if (streams_->recorder == nullptr) {
    streams_->recorder = std::make_unique<DeviceRecorder>(*shared_.host.tracer, device_);
  }
  return streams_->recorder->take(about);
}

void DeviceLane::begin_times(DeviceOperation& operation, CudaStreamHandle stream) {
  operation.times = take_times(*operation.prepared, Stage::kWaitForData);
  if (operation.times != nullptr) operation.times->ready.record(stream);
}

void DeviceLane::end_times(DeviceOperation& operation) {
  DeviceTimes* const times = std::exchange(operation.times, nullptr);
  if (times == nullptr) return;
  if (operation.error) {
    streams_->recorder->drop(*times);
  } else {
    streams_->recorder->finished(*times);
  }
}

void DeviceLane::settle_times(Deadline deadline) {
  DeviceRecorder* recorder = nullptr;
  {
    const std::lock_guard lock(shared_.mutex);
    recorder = streams_->recorder.get();  // stays as long as the lane
  }
  if (recorder != nullptr) recorder->settle(deadline);
}

}  // namespace ringtune
