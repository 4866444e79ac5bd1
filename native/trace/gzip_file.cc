// The elements of a JSON array as a gzip file.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "base/fd.h"
#include "trace/element_file.h"
#include "trace/zlib.h"

namespace ringtune {
namespace {

constexpr off_t kSpareDiskBytes = 64 << 10;  // of the disk, behind the file, for one more block and its end

/// Every block can be unpacked as soon as it is written. A block that finds no room is held, because what is packed
/// later builds on it; further blocks are lost until it has been written. Behind the file some of the disk is kept,
/// which only finish() uses: so the end, and with it the count of what was lost, finds room on a full disk.
class GzipFile final : public ElementFile {
 public:
  explicit GzipFile(const std::string& path)
      : path_(path), fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)) {
    if (!fd_) throw_trace_io("create", path_, errno);
    stream_.pack("[", false, held_);
    if (const int error = write_held()) throw_trace_io("write", path_, error);
  }

  void flush() override {
    if (buffer_.empty()) return;
    if (const int error = write_held()) {
      buffer_.clear();
      throw_trace_io("write", path_, error);
    }
    stream_.pack(buffer_, false, held_);
    text_bytes_ += buffer_.size();
    buffer_.clear();
    (void)write_held();
  }

  void finish() override {
    buffer_ += "\n]\n";
    stream_.pack(buffer_, true, held_);
    buffer_.clear();
    if (const int error = write_out()) throw_trace_io("write", path_, error);
    (void)!::ftruncate(fd_.get(), end_);  // gives back what was kept
  }

 private:
  /// 0, or why it cannot be written now.
  int write_held() noexcept {
    if (held_.empty()) return 0;
    // Where this is not understood, the end of a file on a full disk is missing.
    const auto wanted = static_cast<off_t>(held_.size()) + kSpareDiskBytes;
    if (::fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, end_, wanted) != 0 && errno == ENOSPC) return ENOSPC;
    return write_out();
  }

  int write_out() noexcept {
    for (std::size_t at = 0; at < held_.size();) {
      const ssize_t written = ::pwrite(fd_.get(), held_.data() + at, held_.size() - at, end_ + static_cast<off_t>(at));
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) {
        const int error = written == 0 ? ENOSPC : errno;
        (void)!::ftruncate(fd_.get(), end_);
        return error;
      }
      at += static_cast<std::size_t>(written);
    }
    end_ += static_cast<off_t>(held_.size());
    held_.clear();
    return 0;
  }

  std::string path_;
  Fd fd_;
  GzipStream stream_;
  std::string held_;  // packed, not written
  off_t end_ = 0;
};

}  // namespace

std::unique_ptr<ElementFile> open_gzip_file(const std::string& path) { return std::make_unique<GzipFile>(path); }

}  // namespace ringtune
