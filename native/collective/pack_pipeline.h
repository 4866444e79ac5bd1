// Bytes that come into a collective's buffer when they are first needed and leave it as soon as they are results: so
// the copies between tensors and buffer are made while others' bytes are on their way, and through the caches.
#pragma once

#include "collective/ring_schedule.h"

namespace ringtune {

/// Told by a collective, on its thread. Ranges are cut at elements.
class PackPipeline {
 public:
  /// Before anything in the range is looked at; every byte of the buffer once, in any order.
  virtual void stage_in(ChunkRange range) = 0;
  /// The range is the result and all ranks have agreed to it. No byte twice; some may be left to the caller, who asks
  /// for them when the collective is done.
  virtual void stage_out(ChunkRange range) = 0;

 protected:
  ~PackPipeline() = default;
};

}  // namespace ringtune
