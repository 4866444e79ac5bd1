#include "runtime/gpu/foreign_times.h"

#include <exception>
#include <utility>
#include <vector>

#include "base/log.h"

namespace ringtune {

/// With the lock.
ForeignTimes::Gpu& ForeignTimes::gpu_of(int ordinal) {
  if (const auto known = gpus_.find(ordinal); known != gpus_.end()) return *known->second;
  auto made = std::make_unique<Gpu>(CudaDriver::open(driver_path_), ordinal, tracer_);
  return *gpus_.emplace(ordinal, std::move(made)).first->second;
}

std::uint64_t ForeignTimes::begin(const Span& about, CudaStreamHandle stream) noexcept {
  if (off_.load(std::memory_order_relaxed)) return 0;  // a hint: the lock below orders what close() does
  const std::lock_guard lock(mutex_);
  if (off_) return 0;
  try {
    Gpu& gpu = gpu_of(about.peer);
    const CudaDevice::Current current(gpu.device);
    int capturing = 0;
    gpu.device.check(gpu.device.api().stream_is_capturing(stream, &capturing), "cuStreamIsCapturing");
    if (capturing != 0) return 0;
    DeviceTimes* const times = gpu.recorder->take(about);
    if (times == nullptr) return 0;
    times->foreign = true;
    open_[next_] = {&gpu, times};
    DeviceTimes* const data = about.stage == Stage::kCommunicate ? gpu.recorder->take(about) : nullptr;
    if (data != nullptr) {
      times->tensors.push_back(data);
      data->ready.record(stream);
    }
    times->lasted.next(gpu.device).begin.record(stream);
    return next_++;
  } catch (const std::exception& error) {
    give_up(error.what());
    return 0;
  }
}

ForeignTimes::Work ForeignTimes::take(std::uint64_t work) {
  const auto found = open_.extract(work);
  return found ? found.mapped() : Work{};
}

void ForeignTimes::end(std::uint64_t work, CudaStreamHandle stream) noexcept {
  const std::lock_guard lock(mutex_);
  const auto [gpu, times] = take(work);
  if (times == nullptr) return;
  try {
    const CudaDevice::Current current(gpu->device);
    times->lasted.all.front()->end.record(stream);
    gpu->recorder->finished(*times);
  } catch (const std::exception& error) {
    gpu->recorder->drop(*times);
    give_up(error.what());
  }
}

void ForeignTimes::drop(std::uint64_t work) noexcept {
  const std::lock_guard lock(mutex_);
  const auto [gpu, times] = take(work);
  if (times != nullptr) gpu->recorder->drop(*times);
}

void ForeignTimes::settle(Deadline deadline) {
  std::vector<DeviceRecorder*> recorders;
  {
    const std::lock_guard lock(mutex_);
    if (off_) return;
    for (const auto& [ordinal, gpu] : gpus_) recorders.push_back(gpu->recorder.get());
  }
  for (DeviceRecorder* const recorder : recorders) recorder->settle(deadline);
}

void ForeignTimes::close() noexcept {
  const std::lock_guard lock(mutex_);
  off_ = true;
  open_.clear();
  for (const auto& [ordinal, gpu] : gpus_) gpu->recorder->close();
}

ForeignTimes::~ForeignTimes() {
  close();
  for (const auto& [ordinal, gpu] : gpus_) {
    try {
      const CudaDevice::Current current(gpu->device);
      gpu->recorder.reset();
    } catch (const std::exception&) {  // the driver has failed, and its objects are gone
      (void)gpu->recorder.release();
    }
  }
}

/// With the lock.
void ForeignTimes::give_up(const char* why) noexcept {
  if (off_.exchange(true)) return;
  log(LogLevel::kWarning, "collectives on GPUs are recorded without the GPU's times: ", why);
}

}  // namespace ringtune
