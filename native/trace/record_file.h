// A file that only grows, by whole blocks, plain or packed. Internal to trace/.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "trace/zlib.h"

namespace ringtune {

/// Owns the file. One thread. Throws TraceIo with path and reason. Behind the file some of the disk is kept, which only
/// finish() uses: so the end, and with it the count of what was lost, finds room on a full disk.
class RecordFile {
 public:
  /// Creates or truncates `path`. Throws TraceIo too when it is to be packed and this machine has no zlib.
  RecordFile(const std::string& path, bool gzip);

  /// Appends a block, which can be read from the file when this returns. When it throws the block is lost, and the file
  /// is as it was before.
  void append(std::string_view block);
  /// Appends the last block and gives back what was kept of the disk. More may be appended all the same.
  void finish(std::string_view block);
  /// Bytes that were appended, before packing.
  [[nodiscard]] std::uint64_t appended_bytes() const noexcept { return appended_bytes_; }

 private:
  int reserve(std::size_t bytes) noexcept;
  int write_out(std::string_view bytes) noexcept;
  int write_held() noexcept;
  std::string path_;
  Fd fd_;
  std::unique_ptr<GzipStream> packer_;  // null: plain
  std::string held_;                    // packed, not written: what is packed later builds on it, so it is not given up
  bool ended_ = false;                  // what is appended after finish() is packed on its own
  off_t end_ = 0;
  off_t reserved_ = 0;  // the disk has room up to here
  std::uint64_t appended_bytes_ = 0;
};

/// "cannot write the timeline file PATH: REASON".
[[noreturn]] void throw_trace_io(const char* action, const std::string& path, int error);

}  // namespace ringtune
