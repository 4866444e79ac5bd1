// A file that holds a JSON array and is one after every write. Internal to trace/.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "trace/whole_patch.h"

namespace ringtune {

/// Owns the file. Elements are collected into blocks of about 4 KiB. A block takes the place of the closing bracket of
/// the block before and ends with a bracket of its own: the file is first made longer by blanks, which an array may be
/// followed by, then the block is laid over bracket and blanks as a whole (WholePatch). So the file is a complete array
/// at any moment, whatever kills the process. Where the file system knows no shared mappings an ordinary write is used:
/// a SIGKILL between two of its pages can then leave the last bracket out, which readers accept. One thread. Throws
/// TraceIo with path and reason; after a failed write the file is cut back to its last good state.
class ArrayFile {
 public:
  /// Creates or truncates `path` and writes an empty array.
  explicit ArrayFile(const std::string& path);

  /// Where the next element is written, between begin_element and end_element. Grows as needed.
  std::string& begin_element() {
    buffer_ += first_ ? "\n" : ",\n";
    first_ = false;
    return buffer_;
  }
  void end_element() {
    if (buffer_.size() >= kBlockBytes) flush();
  }
  /// Writes what is collected. No-op when nothing is.
  void flush();

  // An element of ordinary length that begins below this ends within 4 KiB, brackets included.
  static constexpr std::size_t kBlockBytes = 4096 - 512;

 private:
  void write_at(std::int64_t offset, std::string_view text);
  void lay_over(std::string_view block);
  void cut_back() noexcept;
  std::string path_;
  Fd fd_;
  WholePatch patch_;
  std::string buffer_;
  std::int64_t end_ = 0;  // offset of the closing "\n]\n", which the next block takes the place of
  bool first_ = true;
};

}  // namespace ringtune
