// When a batch that travels from GPU to GPU ran, by the GPU's own clock.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "runtime/gpu/recorder.h"
#include "runtime/operation.h"
#include "trace/span.h"

namespace ringtune {

class DeviceLane;

/// The times of a batch that is being launched, with those of its operations. They are dropped unless finish() is
/// called. Needs the device's context; one thread.
class BatchTimes {
 public:
  /// Nothing is timed without `about`, nor where none of the operations is timed, because all were submitted before the
  /// recording began.
  BatchTimes(DeviceLane& lane, std::span<const OperationPtr> batch, const std::optional<Span>& about);
  /// For a batch whose tensors have got their times in the stage before.
  BatchTimes(DeviceLane& lane, const std::optional<Span>& about);
  ~BatchTimes();
  BatchTimes(const BatchTimes&) = delete;
  BatchTimes& operator=(const BatchTimes&) = delete;

  /// Times the work that is put into the stream until its end(): kCopyIn into a buffer, kCommunicate, kCopyOut.
  [[nodiscard]] TimedCopy piece(Stage stage, CudaStreamHandle stream) const;
  /// The batch's copies to the host and back; null where nothing is to be timed.
  [[nodiscard]] DeviceTimes::Copies* to_host() noexcept { return times_ == nullptr ? nullptr : &times_->to_host; }
  [[nodiscard]] DeviceTimes::Copies* to_device() noexcept { return times_ == nullptr ? nullptr : &times_->to_device; }
  /// Call when all of the batch is in its stream; exactly one piece was kCommunicate. `bus_factor`: the bytes that a
  /// link carries for each byte of the batch; 0 leaves it out.
  void finish(std::size_t bytes, double bus_factor);

 private:
  DeviceLane& lane_;
  DeviceTimes* times_ = nullptr;
};

/// The pieces of a batch that goes through a buffer in rounds: packing of the first one, unpacking of the last one, and
/// the time between.
class RoundTimes {
 public:
  RoundTimes(const BatchTimes& times, CudaStreamHandle stream) : times_(times), stream_(stream) {}

  /// Call pack() and then unpack() for each round, of which there is at least one.
  template <typename Act>
  void pack(const Act& act) {
    if (communicate_) return act();
    TimedCopy timed = times_.piece(Stage::kCopyIn, stream_);
    act();
    timed.end();
    communicate_.emplace(times_.piece(Stage::kCommunicate, stream_));
  }
  template <typename Act>
  void unpack(bool last, const Act& act) {
    if (!last) return act();
    communicate_->end();
    TimedCopy timed = times_.piece(Stage::kCopyOut, stream_);
    act();
    timed.end();
  }

 private:
  const BatchTimes& times_;
  CudaStreamHandle stream_;
  std::optional<TimedCopy> communicate_;
};

}  // namespace ringtune
