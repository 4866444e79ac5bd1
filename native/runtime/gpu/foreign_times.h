// When collectives on GPUs ran that another library puts into streams (torch's NCCL, in a job that is only recorded),
// by the GPU's own clock: two events around each, which nobody waits for but the recorder's thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "runtime/gpu/recorder.h"

namespace ringtune {

/// Thread-safe. Opens the driver when the first collective is timed; where it refuses, that is logged once and nothing
/// is timed.
class ForeignTimes {
 public:
  /// `driver`: path of the library, empty: the usual one. The tracer is borrowed.
  ForeignTimes(std::string driver, Tracer& tracer) : driver_path_(std::move(driver)), tracer_(tracer) {}
  ~ForeignTimes();
  ForeignTimes(const ForeignTimes&) = delete;
  ForeignTimes& operator=(const ForeignTimes&) = delete;

  /// Call when the stream holds all that the work has to wait for. `about`: its span, kCommunicate or kDeviceWait, with
  /// the moment of the call and the number of the GPU. Returns what end() or drop() takes, 0 where it is not timed;
  /// what is recorded into a CUDA graph is not.
  [[nodiscard]] std::uint64_t begin(const Span& about, CudaStreamHandle stream) noexcept;
  /// Call when the stream holds all of the work, or waits for it. The spans are written once the GPU has done it.
  void end(std::uint64_t work, CudaStreamHandle stream) noexcept;
  void drop(std::uint64_t work) noexcept;
  /// Blocks until the timeline holds the spans of what has ended, at most until the deadline.
  void settle(Deadline deadline);
  /// Work that the GPU has not done is left out; begin() times nothing more.
  void close() noexcept;

 private:
  struct Gpu {
    Gpu(const CudaDriver& driver, int ordinal, Tracer& tracer)
        : device(driver, ordinal), recorder(std::make_unique<DeviceRecorder>(tracer, device)) {}
    CudaDevice device;
    std::unique_ptr<DeviceRecorder> recorder;
  };
  struct Work {
    Gpu* gpu = nullptr;
    DeviceTimes* times = nullptr;
  };

  Gpu& gpu_of(int ordinal);
  Work take(std::uint64_t work);
  void give_up(const char* why) noexcept;

  const std::string driver_path_;
  Tracer& tracer_;
  std::mutex mutex_;
  std::map<int, std::unique_ptr<Gpu>> gpus_;
  std::map<std::uint64_t, Work> open_;
  std::uint64_t next_ = 1;
  std::atomic<bool> off_ = false;
};

}  // namespace ringtune
