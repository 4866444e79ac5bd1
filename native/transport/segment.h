// The shared memory of one channel between two ranks: a header and one ring for each direction.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/fd.h"
#include "transport/byte_ring.h"
#include "transport/memory.h"

namespace ringtune {

/// Which of the two ranks: the lower one creates the segment, the higher one attaches to it.
enum class SegmentSide : std::uint8_t { kLower = 0, kHigher = 1 };
[[nodiscard]] constexpr SegmentSide other(SegmentSide side) noexcept {
  return side == SegmentSide::kLower ? SegmentSide::kHigher : SegmentSide::kLower;
}

/// Owns the mappings (and, for the creator until detach_fd(), the descriptor). Construction is done by one thread; the
/// flags may be read and written by any thread of both processes. Nothing blocks.
class DuplexSegment {
 public:
  /// A new segment with rings of at least `ring_bytes` (rounded up to a power of two of whole pages). Throws Error.
  static DuplexSegment create(std::size_t ring_bytes);
  /// Maps what process `pid` created as its descriptor `fd`. Throws Error when that is gone or not the one of `token`.
  static DuplexSegment attach(int pid, int fd, std::uint64_t token);

  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  void detach_fd() noexcept { fd_.reset(); }  // the mappings keep the memory alive
  [[nodiscard]] std::uint64_t token() const noexcept;
  /// The ring in which `side` produces.
  [[nodiscard]] RingView ring_of(SegmentSide side) const noexcept;

  /// `side` is there: it will read and write.
  void mark_joined(SegmentSide side, bool joined) const noexcept;
  [[nodiscard]] bool joined(SegmentSide side) const noexcept;
  /// `side` will never read or write again. What it wrote before stays readable.
  void mark_closed(SegmentSide side) const noexcept;
  [[nodiscard]] bool closed(SegmentSide side) const noexcept;

 private:
  struct Header;
  DuplexSegment(Fd fd, std::size_t capacity);
  [[nodiscard]] Header& header() const noexcept;

  Fd fd_;
  Mapping header_;
  Mapping data_[2];
  std::size_t capacity_;
};

}  // namespace ringtune
