#include "trace/record_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "base/error.h"

namespace ringtune {
namespace {

constexpr off_t kKeptBytes = 64 << 10;        // kept for the last block
constexpr off_t kReservedAtOnce = 256 << 10;  // asking for room costs as much as writing a small block

}  // namespace

void throw_trace_io(const char* action, const std::string& path, int error) {
  throw TraceIo(std::string("cannot ") + action + " the timeline file " + path + ": " +
                std::generic_category().message(error));
}

RecordFile::RecordFile(const std::string& path, bool gzip)
    : path_(path), fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)) {
  if (!fd_) throw_trace_io("create", path_, errno);
  if (gzip) packer_ = std::make_unique<GzipStream>();
}

void RecordFile::append(std::string_view block) {
  int error = 0;
  if (packer_ == nullptr) {
    error = reserve(block.size());
    if (error == 0) error = write_out(block);
  } else {
    error = write_held();
    if (error == 0) {
      if (ended_) packer_ = std::make_unique<GzipStream>();
      ended_ = false;
      packer_->pack(block, false, held_);
      (void)write_held();
    }
  }
  if (error != 0) throw_trace_io("write", path_, error);
  appended_bytes_ += block.size();
}

void RecordFile::finish(std::string_view block) {
  int error = 0;
  if (packer_ == nullptr) {
    error = write_out(block);
  } else {
    packer_->pack(block, true, held_);
    error = write_out(held_);
    held_.clear();
    ended_ = true;
  }
  (void)!::ftruncate(fd_.get(), end_);  // gives back what was kept
  reserved_ = end_;
  if (error != 0) throw_trace_io("write", path_, error);
  appended_bytes_ += block.size();
}

/// 0, or why it cannot be written now.
int RecordFile::write_held() noexcept {
  if (held_.empty()) return 0;
  int error = reserve(held_.size());
  if (error == 0) error = write_out(held_);
  if (error == 0) held_.clear();
  return error;
}

/// 0 when there is room for so many bytes and for the last block. Where a file system does not understand the question,
/// the end of a file on a full disk is missing.
int RecordFile::reserve(std::size_t bytes) noexcept {
  const off_t wanted = static_cast<off_t>(bytes) + kKeptBytes;
  if (end_ + wanted <= reserved_) return 0;
  for (const off_t length : {wanted + kReservedAtOnce, wanted}) {
    if (::fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, end_, length) == 0 || errno != ENOSPC) {
      reserved_ = end_ + length;
      return 0;
    }
  }
  return ENOSPC;
}

int RecordFile::write_out(std::string_view bytes) noexcept {
  for (std::size_t at = 0; at < bytes.size();) {
    const ssize_t written = ::pwrite(fd_.get(), bytes.data() + at, bytes.size() - at, end_ + static_cast<off_t>(at));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int error = written == 0 ? ENOSPC : errno;
      (void)!::ftruncate(fd_.get(), end_);
      reserved_ = end_;
      return error;
    }
    at += static_cast<std::size_t>(written);
  }
  end_ += static_cast<off_t>(bytes.size());
  return 0;
}

}  // namespace ringtune
