#include "runtime/gpu/recorder.h"

#include <algorithm>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "transport/thread.h"

namespace ringtune {

DeviceTimes::Copy& DeviceTimes::Copies::next(const CudaDevice& device) {
  if (count == all.size()) all.push_back(std::make_unique<Copy>(device));
  return *all[count++];
}

TimedCopy::TimedCopy(DeviceTimes::Copies* copies, const CudaDevice& device, CudaStreamHandle stream, std::size_t bytes,
                     std::optional<Stage> stage)
    : stream_(stream) {
  if (copies == nullptr) return;
  copy_ = &copies->next(device);
  copy_->bytes = bytes;
  copy_->stage = stage;
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
  times.to_host.count = times.to_device.count = times.lasted.count = 0;
  times.foreign = false;
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
  give_back(times);
}

/// With the lock.
void DeviceRecorder::give_back(DeviceTimes& times) {
  for (DeviceTimes* const tensor : times.tensors) free_.push_back(tensor);
  times.tensors.clear();
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
  if (const auto exchange = device_.api().thread_capture_mode; exchange != nullptr) {
    // While the program records a CUDA graph, a look at an event from any thread would break the graph.
    int relaxed = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED
    (void)exchange(&relaxed);
  }
  std::unique_lock lock(mutex_);
  while (true) {
    news_.wait(lock, [&] { return ends_ || settling_ || !finished_.empty(); });
    if (finished_.empty() && settling_) {
      record_clock();
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
    give_back(times);
  }
  clock_.reset();  // while the context is current
}

void DeviceRecorder::write(DeviceTimes& times) {
  from_ns_ = times.about.begin_ns;
  const bool whole = times.lasted.count > 0;
  if (times.foreign && !comes(times.lasted.all.front()->end)) return;
  if (!whole) times.ready.synchronize();
  for (const DeviceTimes* const tensor : times.tensors) {
    tensor->ready.synchronize();
    from_ns_ = std::min(from_ns_, tensor->about.begin_ns);
  }
  for (const DeviceTimes::Copies* const copies : {&times.to_host, &times.to_device, &times.lasted}) {
    for (std::size_t i = 0; i < copies->count; ++i) copies->all[i]->end.synchronize();
  }
  until_ns_ = now_ns();
  if (clock_->wants_anchor()) {
    clock_->anchor();
    record_clock();
  }
  whole ? write_whole(times) : write_staged(times);
}

/// Blocks until the event is reached; false at close(), which must not wait for a collective that hangs.
bool DeviceRecorder::comes(const CudaEvent& event) {
  constexpr std::chrono::milliseconds kPoll{1};
  while (!event.reached()) {
    std::unique_lock lock(mutex_);
    if (news_.wait_for(lock, kPoll, [this] { return ends_; })) return event.reached();
  }
  return true;
}

void DeviceRecorder::put(Span span, Stage stage, std::int64_t begin_ns, std::int64_t end_ns) {
  span.stage = stage;
  span.begin_ns = begin_ns;
  span.end_ns = std::max(begin_ns, end_ns);
  tracer_.record(span);
}

/// An operation's copies to the host and back.
void DeviceRecorder::write_staged(const DeviceTimes& times) {
  const std::int64_t ready_ns = when(times.ready);
  put(times.about, Stage::kWaitForData, std::min(from_ns_, ready_ns), ready_ns);
  if (times.to_host.count > 0) {
    const std::int64_t begin_ns = when(times.to_host.all.front()->begin);
    put(times.about, Stage::kDeviceQueue, std::min(ready_ns, begin_ns), begin_ns);
  }
  write_copies(times);
}

void DeviceRecorder::write_copies(const DeviceTimes& times) {
  const auto put_all = [&](Stage stage, const DeviceTimes::Copies& copies) {
    for (std::size_t i = 0; i < copies.count; ++i) {
      const DeviceTimes::Copy& copy = *copies.all[i];
      Span span = times.about;
      span.bytes = copy.bytes;
      put(span, stage, when(copy.begin), when(copy.end));
    }
  };
  put_all(Stage::kCopyToHost, times.to_host);
  put_all(Stage::kCopyToDevice, times.to_device);
}

/// A batch from GPU to GPU, with copies where NCCL works within hosts only; or a wait.
void DeviceRecorder::write_whole(const DeviceTimes& times) {
  for (std::size_t i = 0; i < times.lasted.count; ++i) {
    const DeviceTimes::Copy& piece = *times.lasted.all[i];
    std::int64_t begin_ns = when(piece.begin);
    std::int64_t end_ns = when(piece.end);
    if (times.foreign && times.about.batch_id != 0 && times.about.stage == Stage::kCommunicate) {
      // Two that end at almost the same moment may come out in reverse: the clock is looked at again between them.
      std::int64_t& before_ns = foreign_end_ns_[times.about.process_set];
      begin_ns = std::max(begin_ns, before_ns);
      before_ns = end_ns = std::max(end_ns, begin_ns);
    }
    if (i == 0) write_tensors(times, begin_ns);
    const Stage stage = piece.stage.value_or(times.about.stage);
    put(times.about, stage, begin_ns, end_ns);
    if (stage == Stage::kCommunicate) write_speed(times, begin_ns, end_ns);
  }
  write_copies(times);
}

void DeviceRecorder::write_speed(const DeviceTimes& times, std::int64_t begin_ns, std::int64_t end_ns) {
  if (times.bus_factor == 0) return;
  const double seconds = static_cast<double>(std::max<std::int64_t>(1, end_ns - begin_ns)) * 1e-9;
  Span speed = times.about;
  speed.kind = static_cast<std::uint8_t>(Count::kBusBandwidth);
  speed.bytes = static_cast<std::uint64_t>(static_cast<double>(times.about.bytes) * times.bus_factor / seconds);
  put(speed, Stage::kCounter, end_ns, end_ns);
}

/// The time that the tensors of a batch waited before it began.
void DeviceRecorder::write_tensors(const DeviceTimes& batch, std::int64_t begin_ns) {
  for (const DeviceTimes* const tensor : batch.tensors) {
    Span about = tensor->about;
    about.batch_id = batch.about.batch_id;
    const std::int64_t ready_ns = when(tensor->ready);
    put(about, Stage::kWaitForData, std::min(about.begin_ns, ready_ns), ready_ns);
    put(about, Stage::kDeviceQueue, std::min(ready_ns, begin_ns), begin_ns);
  }
}

std::int64_t DeviceRecorder::when(const CudaEvent& event) {
  const HostMoment moment = clock_->when(event, from_ns_, until_ns_);
  worst_ns_ = std::max(worst_ns_, moment.error_ns);
  return moment.ns;
}

void DeviceRecorder::record_clock() {
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
        ": its times are left out of the timeline from now on: ", error.what());
  }
}

}  // namespace ringtune
