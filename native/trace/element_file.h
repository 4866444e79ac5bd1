// A file that holds the elements of a JSON array, one a line. Internal to trace/.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace ringtune {

/// Owns the file. Elements are collected into blocks; flush() moves a block. One thread. Throws TraceIo with path and
/// reason; a block that cannot be written is lost, and the file is as it was before.
class ElementFile {
 public:
  ElementFile() = default;
  ElementFile(const ElementFile&) = delete;
  ElementFile& operator=(const ElementFile&) = delete;
  virtual ~ElementFile() = default;

  /// Where the next element is written. Grows as needed.
  std::string& begin_element() {
    buffer_ += first_ ? "\n" : ",\n";
    first_ = false;
    return buffer_;
  }
  [[nodiscard]] bool block_full() const noexcept { return buffer_.size() >= kBlockBytes; }
  /// Writes what is collected. No-op when nothing is.
  virtual void flush() = 0;
  /// As flush(), for the last block: a small one finds room on a disk that is full.
  virtual void finish() = 0;
  /// Bytes of the elements that were flushed, as text.
  [[nodiscard]] std::uint64_t text_bytes() const noexcept { return text_bytes_; }

  static constexpr std::size_t kBlockBytes = 32 << 10;

 protected:
  std::string buffer_;
  bool first_ = true;
  std::uint64_t text_bytes_ = 0;
};

/// A JSON array at any moment, whatever kills the process.
[[nodiscard]] std::unique_ptr<ElementFile> open_array_file(const std::string& path);
/// A gzip file of the same text. Throws TraceIo too when this machine has no zlib.
[[nodiscard]] std::unique_ptr<ElementFile> open_gzip_file(const std::string& path);

/// "cannot write the timeline file PATH: REASON".
[[noreturn]] void throw_trace_io(const char* action, const std::string& path, int error);

}  // namespace ringtune
