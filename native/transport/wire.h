// Frames on a plain socket: little-endian u32 length + payload. For the store, the hello of a link and the monitor.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "base/bytes.h"

namespace ringtune {

/// Appends one frame to `out`.
void append_frame(Bytes& out, ByteView payload);

/// Collects bytes and cuts them into frames. Memory grows with what arrived, never with what a length field claims.
class FrameAssembler {
 public:
  /// `most_held`: it holds no more until lift_limit(); 0: no such limit.
  explicit FrameAssembler(std::size_t max_frame_bytes, std::size_t most_held = 0) noexcept
      : max_frame_bytes_(max_frame_bytes), most_held_(most_held) {}
  /// From now on frames may have so many bytes.
  void lift_limit(std::size_t max_frame_bytes) noexcept {
    max_frame_bytes_ = max_frame_bytes;
    most_held_ = 0;
  }
  /// Where to read the next bytes to (never empty); invalidates views given by next(). Throws Protocol where the limit
  /// is reached.
  [[nodiscard]] std::span<std::byte> space();
  /// `bytes` of space() were filled.
  void filled(std::size_t bytes) noexcept { end_ += bytes; }
  /// The payload of the next complete frame; valid until the next call. A large frame's memory goes with it. Throws
  /// Protocol for a length above the limit.
  [[nodiscard]] std::optional<ByteView> next();
  /// Takes `count` raw bytes that stand before the frames; nothing when they have not all come.
  [[nodiscard]] std::optional<ByteView> take_raw(std::size_t count);

 private:
  void release_if_empty() noexcept;

  std::size_t max_frame_bytes_;
  std::size_t most_held_;
  Bytes buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

/// Bytes that wait to be written to a socket.
class SendQueue {
 public:
  void push_frame(ByteView payload) { append_frame(bytes_, payload); }
  void push_raw(ByteView bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_.size() - sent_; }
  [[nodiscard]] bool empty() const noexcept { return size() == 0; }
  [[nodiscard]] ByteView pending() const noexcept { return ByteView(bytes_).subspan(sent_); }
  void sent(std::size_t count) noexcept;

 private:
  Bytes bytes_;
  std::size_t sent_ = 0;
};

}  // namespace ringtune
