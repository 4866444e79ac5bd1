// When a batch that goes from GPU to GPU ran, by the GPU's own clock.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "runtime/device_recorder.h"
#include "runtime/operation.h"
#include "trace/span.h"

namespace ringtune {

class DeviceLane;

/// Of a batch that is being launched, with the times of its operations. Dropped unless finished. Needs the device's
/// context; one thread.
class BatchTimes {
 public:
  /// Nothing is timed without `about`, nor where none of the operations is: they were submitted before the recording
  /// began.
  BatchTimes(DeviceLane& lane, std::span<const OperationPtr> batch, const std::optional<Span>& about);
  ~BatchTimes();
  BatchTimes(const BatchTimes&) = delete;
  BatchTimes& operator=(const BatchTimes&) = delete;

  /// Times what is put into the stream until its end(): kCopyIn into a buffer, kCommunicate, kCopyOut.
  [[nodiscard]] TimedCopy piece(Stage stage, CudaStreamHandle stream) const;
  /// All of it is in its stream; of the pieces exactly one was kCommunicate. `bus_factor`: what a link carries for each
  /// byte of it.
  void finish(std::size_t bytes, double bus_factor);

 private:
  DeviceLane& lane_;
  DeviceTimes* times_ = nullptr;
};

}  // namespace ringtune
