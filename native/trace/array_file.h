// A file that holds a JSON array and is one after every write. Internal to trace/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "trace/whole_patch.h"

namespace ringtune {

/// A block takes the place of the closing bracket of the block before and ends with a bracket of its own: the file is
/// first made longer by blanks, which an array may be followed by, then the block is laid over bracket and blanks as a
/// whole (WholePatch). So the file is a complete array at any moment. Where the file system knows no shared mappings an
/// ordinary write is used: a SIGKILL between two of its pages can then leave the last bracket out, which readers
/// accept. Some blanks are always kept behind the bracket: the last block goes there when the disk is full.
///
/// Elements are collected into blocks. One thread. Throws TraceIo with path and reason; a block that cannot be written
/// is lost, and the file is as it was before.
class ArrayFile {
 public:
  /// Creates or truncates `path` and writes an empty array.
  explicit ArrayFile(const std::string& path);

  /// Where the next element is written. Grows as needed.
  std::string& begin_element() {
    buffer_ += first_ ? "\n" : ",\n";
    first_ = false;
    return buffer_;
  }
  [[nodiscard]] bool block_full() const noexcept { return buffer_.size() >= kBlockBytes; }
  /// Writes what is collected. No-op when nothing is.
  void flush();
  /// As flush(), for the last block: a small one finds room on a disk that is full.
  void finish();

  static constexpr std::size_t kBlockBytes = 32 << 10;

 private:
  void write_at(std::int64_t offset, std::string_view text);
  void lay_over(bool longer);
  void cut_back(std::int64_t blanks) noexcept;
  std::string buffer_;
  bool first_ = true;
  std::string path_;
  Fd fd_;
  WholePatch patch_;
  std::int64_t end_ = 0;  // offset of the closing "\n]\n", which the next block takes the place of
};

}  // namespace ringtune
