// Overwrites bytes of a file so that a SIGKILL finds all of them changed or none. Internal to trace/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/fd.h"

namespace ringtune {

/// A write() across a page boundary is no such thing: the kernel looks for a deadly signal (and may run somebody else)
/// between two pages. Copying to the memory of a process it does in one go. So the bytes are put into a memfd and
/// *read* from there into a shared mapping of the file; a page that cannot be had ends in an error code, never in
/// SIGBUS. Owns mapping and memfd, borrows the file. One thread. Throws nothing.
class WholePatch {
 public:
  explicit WholePatch(int file) noexcept;
  ~WholePatch();
  WholePatch(const WholePatch&) = delete;
  WholePatch& operator=(const WholePatch&) = delete;

  /// Writes `text` over bytes that the file already has. False when this file system or sandbox does not allow it (the
  /// caller then writes the ordinary way, perhaps over a part that was patched).
  [[nodiscard]] bool apply(std::int64_t offset, std::string_view text) noexcept;

 private:
  bool map(std::int64_t offset, std::size_t bytes) noexcept;
  void unmap() noexcept;
  int file_;
  Fd scratch_;
  bool usable_;
  std::byte* window_ = nullptr;
  std::int64_t window_begin_ = 0;
};

}  // namespace ringtune
