// What a path from GPU to GPU offers: it puts batches into streams.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <span>

#include "base/clock.h"
#include "device/cuda.h"
#include "runtime/operation.h"
#include "trace/tracer.h"

namespace ringtune {

struct BatchContext;

/// The driving thread but where said. All operations of a batch take the same path; all members of a set call these for
/// the same batches in the same order.
class StreamPath {
 public:
  /// Connects the set. Blocks the first time. Throws DataPathRefused, on all members, when one of them cannot take
  /// the path; PeerLost.
  virtual void prepare(std::span<const OperationPtr> batch, const BatchContext& context) = 0;
  /// Puts the batch into a stream. `about`: what the timeline says of it, once the GPU has told when it ran; none while
  /// nothing is recorded. Throws DeviceError, Timeout; what abort() was given.
  virtual void launch(std::span<const OperationPtr> batch, const BatchContext& context,
                      const std::optional<Span>& about) = 0;
  /// The set is gone; what it has in streams goes on. Does not block.
  virtual void removed(std::uint32_t process_set) = 0;

  // Any thread.
  /// Throws the error that has ended the path, if it came before that event: results in streams are undefined then.
  virtual void check_arrival(const CudaEvent& copied) = 0;
  /// Ends what is in streams, with results that mean nothing; every later batch fails with `error`. Idempotent.
  virtual void abort(const std::exception_ptr& error) noexcept = 0;

  /// When nothing is launched any more, and before the lanes go: waits for what is in streams, at most `timeout`.
  virtual void close(Deadline timeout) noexcept = 0;

 protected:
  ~StreamPath() = default;
};

}  // namespace ringtune
