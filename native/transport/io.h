// Blocking helpers over a Link and the rank's Waker, for code that talks to one peer at a time.
#pragma once

#include <cstddef>
#include <span>

#include "base/bytes.h"
#include "base/clock.h"
#include "transport/link.h"
#include "transport/waker.h"

namespace ringtune {

/// All block until done, throw Timeout at the deadline and whatever the link throws.
void send_all(Link& link, Waker& waker, std::span<const std::byte> bytes, Deadline deadline);
void recv_all(Link& link, Waker& waker, std::span<std::byte> bytes, Deadline deadline);

/// Frames: little-endian u32 length + payload. FrameReader collects one frame without blocking; FrameWriter keeps
/// unsent bytes.
class FrameReader {
 public:
  /// Consumes what is there; true when `frame()` holds a complete frame (until the next poll). Throws Protocol for a
  /// length above kMaxBytes. When it returned true, poll again before waiting: the next frame may be there already.
  bool poll(Link& link);
  [[nodiscard]] ByteView frame() const noexcept { return frame_; }
  static constexpr std::size_t kMaxBytes = 64u << 20;

 private:
  void start_payload(int peer);

  Bytes frame_;
  std::size_t have_ = 0;
  std::size_t header_have_ = 0;
  std::byte header_[4]{};
  bool complete_ = false;
};

class FrameWriter {
 public:
  /// Queues a copy of `payload` (at most FrameReader::kMaxBytes); never blocks.
  void push(ByteView payload);
  /// Sends what the link takes now; true when nothing is left.
  bool poll(Link& link);
  [[nodiscard]] bool empty() const noexcept { return sent_ == queue_.size(); }

 private:
  Bytes queue_;
  std::size_t sent_ = 0;
};

}  // namespace ringtune
