// Spans of operations on a GPU's tensors, by the GPU's own clock: when they waited for their data, when they were
// copied or went from GPU to GPU, when the program's streams waited for them. A lane has a recorder only once something
// was recorded there; the rest of the runtime pays a branch.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "device/cuda.h"
#include "device/device_clock.h"
#include "trace/tracer.h"

namespace ringtune {

/// Timed events of one operation, of a batch that goes from GPU to GPU, or of a stream's wait for a result. Pooled by
/// the recorder.
struct DeviceTimes {
  struct Copy {
    explicit Copy(const CudaDevice& device) : begin(device, CudaEventUse::kTimed), end(device, CudaEventUse::kTimed) {}
    CudaEvent begin;
    CudaEvent end;
    std::size_t bytes = 0;
    std::optional<Stage> stage;  // of a piece of a batch; else that of all of it
  };
  struct Copies {
    std::vector<std::unique_ptr<Copy>> all;
    std::size_t count = 0;  // of them are in use
    /// Another one. Needs the device's context; throws DeviceError.
    Copy& next(const CudaDevice& device);
  };

  explicit DeviceTimes(const CudaDevice& device) : ready(device, CudaEventUse::kTimed) {}

  Span about{};     // what all spans say; begins when the host began with it
  CudaEvent ready;  // of an operation, in the caller's stream: the tensor is what is to be reduced
  Copies to_host;
  Copies to_device;
  Copies lasted;                      // a batch, in its pieces, or a wait
  std::vector<DeviceTimes*> tensors;  // of a batch: its operations, to be given back with it
  double bus_factor = 0;              // of a batch: what a link carries for each of its bytes
  // Put into streams by another library: its end may never come, and it begins behind the batch before it of its group.
  bool foreign = false;
};

/// Two events around a copy, or other work, that is put into a stream; none where there are no `copies`. Needs the
/// device's context; throws DeviceError.
class TimedCopy {
 public:
  TimedCopy(DeviceTimes::Copies* copies, const CudaDevice& device, CudaStreamHandle stream, std::size_t bytes,
            std::optional<Stage> stage = std::nullopt);
  void end();

 private:
  DeviceTimes::Copy* copy_ = nullptr;
  CudaStreamHandle stream_;
};

/// Thread-safe. Owns a thread that sleeps until the GPU has reached an operation's events, and writes its spans then.
class DeviceRecorder {
 public:
  /// The device's context is current.
  DeviceRecorder(Tracer& tracer, const CudaDevice& device);
  ~DeviceRecorder();  // close(); needs the context
  DeviceRecorder(const DeviceRecorder&) = delete;
  DeviceRecorder& operator=(const DeviceRecorder&) = delete;

  /// Events for work that begins now, to be given back. Null when the driver refuses; the work goes on without them.
  /// Needs the context.
  [[nodiscard]] DeviceTimes* take(const Span& about) noexcept;
  /// Call when all timed work is in its streams; its spans will be written.
  void finished(DeviceTimes& times);
  /// Call when it has failed; no spans are written.
  void drop(DeviceTimes& times);
  /// Blocks until the spans of all finished work are written, at most until the deadline.
  void settle(Deadline deadline);
  void close();

 private:
  void run();
  void write(DeviceTimes& times);
  [[nodiscard]] bool comes(const CudaEvent& event);
  void write_staged(const DeviceTimes& times);
  void write_whole(const DeviceTimes& times);
  void write_speed(const DeviceTimes& times, std::int64_t begin_ns, std::int64_t end_ns);
  void write_copies(const DeviceTimes& times);
  void write_tensors(const DeviceTimes& batch, std::int64_t begin_ns);
  void put(Span span, Stage stage, std::int64_t begin_ns, std::int64_t end_ns);
  void give_back(DeviceTimes& times);
  [[nodiscard]] std::int64_t when(const CudaEvent& event);
  void record_clock();
  void give_up(const std::exception_ptr& why) noexcept;

  Tracer& tracer_;
  const CudaDevice& device_;
  // The thread's:
  std::unique_ptr<DeviceClock> clock_;
  std::int64_t from_ns_ = 0;  // all events of the operation lie between these
  std::int64_t until_ns_ = 0;
  std::int64_t worst_ns_ = 0;                             // error since the clock's was told
  std::map<std::uint16_t, std::int64_t> foreign_end_ns_;  // of a group's last batch

  std::mutex mutex_;
  std::condition_variable news_;
  std::condition_variable idle_;
  std::deque<std::unique_ptr<DeviceTimes>> all_;
  std::vector<DeviceTimes*> free_;
  std::deque<DeviceTimes*> finished_;
  bool settling_ = false;  // settle() waits, which also writes how good the clock was
  bool ends_ = false;
  bool gave_up_ = false;
  std::thread thread_;
};

}  // namespace ringtune
