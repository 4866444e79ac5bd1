#include "runtime/device_recorder.h"

#include <algorithm>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "transport/thread.h"

namespace ringtune {

TimedCopy::TimedCopy(DeviceTimes::Copies* copies, const CudaDevice& device, const CudaStream& stream, std::size_t bytes)
    : stream_(stream.handle()) {
  if (copies == nullptr || bytes == 0) return;
  if (copies->count == copies->all.size()) copies->all.push_back(std::make_unique<DeviceTimes::Copy>(device));
  copy_ = copies->all[copies->count++].get();
  copy_->bytes = bytes;
  copy_->begin.record(stream_);
}

void TimedCopy::end() {
  if (copy_ != nullptr) copy_->end.record(stream_);
}

DeviceRecorder::DeviceRecorder(Tracer& tracer, const CudaDevice& device) : tracer_(tracer), device_(device) {
  thread_ = start_thread("ringtune-times", [this] { run(); });
}

DeviceRecorder::~DeviceRecorder() { close(); }

void DeviceRecorder::close() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  news_.notify_all();
  thread_.join();
}

DeviceTimes* DeviceRecorder::take(const Span& about) noexcept {
  const std::lock_guard lock(mutex_);
  if (gave_up_) return nullptr;
  try {
    if (free_.empty()) free_.push_back(all_.emplace_back(std::make_unique<DeviceTimes>(device_)).get());
  } catch (...) {
    give_up(std::current_exception());
    return nullptr;
  }
  DeviceTimes& times = *free_.back();
  free_.pop_back();
  times.about = about;
  times.to_host.count = times.to_device.count = 0;
  return &times;
}

void DeviceRecorder::finished(DeviceTimes& times) {
  {
    const std::lock_guard lock(mutex_);
    finished_.push_back(&times);
  }
  news_.notify_one();
}

void DeviceRecorder::drop(DeviceTimes& times) {
  const std::lock_guard lock(mutex_);
  free_.push_back(&times);
}

void DeviceRecorder::settle(Deadline deadline) {
  std::unique_lock lock(mutex_);
  settling_ = true;
  news_.notify_one();
  while (settling_ && !ends_ && !deadline.expired()) {
    idle_.wait_for(lock, std::chrono::nanoseconds(std::min<std::int64_t>(deadline.remaining_ns(), 1'000'000'000)));
  }
}

void DeviceRecorder::run() {
  std::optional<CudaDevice::Current> current;
  std::unique_lock lock(mutex_);
  while (true) {
    news_.wait(lock, [&] { return ends_ || settling_ || !finished_.empty(); });
    if (finished_.empty() && settling_) {
      tell_clock();
      settling_ = false;
      idle_.notify_all();
    }
    if (finished_.empty()) {
      if (ends_) break;
      continue;
    }
    DeviceTimes& times = *finished_.front();
    finished_.pop_front();
    if (!gave_up_) {
      lock.unlock();
      std::exception_ptr failure;
      try {
        if (!current) current.emplace(device_);
        if (clock_ == nullptr) clock_ = std::make_unique<DeviceClock>(device_);
        write(times);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      if (failure) give_up(failure);
    }
    free_.push_back(&times);
  }
  clock_.reset();  // while the context is current
}

void DeviceRecorder::write(DeviceTimes& times) {
  times.ready.synchronize();
  for (const DeviceTimes::Copies* const copies : {&times.to_host, &times.to_device}) {
    for (std::size_t i = 0; i < copies->count; ++i) copies->all[i]->end.synchronize();
  }
  from_ns_ = times.about.begin_ns;
  until_ns_ = now_ns();
  if (clock_->wants_anchor()) {
    clock_->anchor();
    tell_clock();
  }
  const std::int64_t ready_ns = when(times.ready);
  Span span = times.about;
  const auto put = [&](Stage stage, std::int64_t begin_ns, std::int64_t end_ns, std::size_t bytes) {
    span.stage = stage;
    span.begin_ns = begin_ns;
    span.end_ns = std::max(begin_ns, end_ns);
    span.bytes = bytes;
    tracer_.record(span);
  };
  put(Stage::kWaitForData, std::min(from_ns_, ready_ns), ready_ns, times.about.bytes);
  for (std::size_t i = 0; i < times.to_host.count; ++i) {
    const DeviceTimes::Copy& copy = *times.to_host.all[i];
    const std::int64_t begin_ns = when(copy.begin);
    if (i == 0) put(Stage::kDeviceQueue, std::min(ready_ns, begin_ns), begin_ns, times.about.bytes);
    put(Stage::kCopyToHost, begin_ns, when(copy.end), copy.bytes);
  }
  for (std::size_t i = 0; i < times.to_device.count; ++i) {
    const DeviceTimes::Copy& copy = *times.to_device.all[i];
    put(Stage::kCopyToDevice, when(copy.begin), when(copy.end), copy.bytes);
  }
}

std::int64_t DeviceRecorder::when(const CudaEvent& event) {
  const HostMoment moment = clock_->when(event, from_ns_, until_ns_);
  worst_ns_ = std::max(worst_ns_, moment.error_ns);
  return moment.ns;
}

void DeviceRecorder::tell_clock() {
  if (clock_ == nullptr || !clock_->has_anchor()) return;
  const ClockAnchor& anchor = clock_->last();
  const std::int64_t error_ns = std::max(worst_ns_, anchor.error_ns + kEventResolutionNs);
  worst_ns_ = 0;
  tracer_.event("DEVICE_CLOCK", "clock", anchor.host_ns,
                "{\"device\":" + std::to_string(device_.ordinal()) + ",\"error_ns\":" + std::to_string(error_ns) +
                    ",\"drift_ppb\":" + std::to_string(clock_->drift_ppb()) + "}");
}

/// With the lock.
void DeviceRecorder::give_up(const std::exception_ptr& why) noexcept {
  if (std::exchange(gave_up_, true)) return;
  try {
    std::rethrow_exception(why);
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, "GPU ", device_.ordinal(),
        ": its copies are left out of the timeline from now on: ", error.what());
  }
}

}  // namespace ringtune
