#include "trace/array_file.h"

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>

#include "trace/record_file.h"

namespace ringtune {
namespace {

constexpr std::string_view kClose = "\n]\n";
constexpr std::int64_t kSpareBytes = 512;

std::string blanks(std::int64_t count) { return std::string(static_cast<std::size_t>(count), ' '); }

}  // namespace

ArrayFile::ArrayFile(const std::string& path)
    : path_(path), fd_(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)), patch_(fd_.get()) {
  if (!fd_) throw_trace_io("create", path_, errno);
  buffer_.reserve(2 * kBlockBytes);
  write_at(0, "[" + std::string(kClose) + blanks(kSpareBytes));
  end_ = 1;
}

void ArrayFile::flush() {
  if (buffer_.empty()) return;
  const std::size_t block = buffer_.size();
  buffer_ += kClose;
  try {
    lay_over(true);
  } catch (...) {
    buffer_.clear();
    first_ = end_ == 1;
    cut_back(kSpareBytes);
    throw;
  }
  end_ += static_cast<std::int64_t>(block);
  buffer_.clear();
}

void ArrayFile::finish() {
  const auto block = static_cast<std::int64_t>(buffer_.size());
  if (block > kSpareBytes) {
    flush();
  } else if (block > 0) {
    buffer_ += kClose;
    lay_over(false);
    end_ += block;
    buffer_.clear();
  }
  cut_back(0);
}

void ArrayFile::lay_over(bool longer) {
  const auto close = static_cast<std::int64_t>(kClose.size());
  const auto block = static_cast<std::int64_t>(buffer_.size()) - close;
  // Also finds a full disk while nothing but blanks can be cut short.
  if (longer) write_at(end_ + close + kSpareBytes, blanks(block));
  if (!patch_.apply(end_, buffer_)) write_at(end_, buffer_);
}

void ArrayFile::write_at(std::int64_t offset, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::pwrite(fd_.get(), text.data(), text.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) throw_trace_io("write", path_, written == 0 ? ENOSPC : errno);
    offset += written;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

/// Ends the file with its bracket and so many blanks. These bytes were in the file before: a full disk has room.
void ArrayFile::cut_back(std::int64_t spare) noexcept {
  const std::string tail = std::string(kClose) + blanks(spare);
  const ssize_t written = ::pwrite(fd_.get(), tail.data(), tail.size(), static_cast<off_t>(end_));
  if (written > 0) (void)!::ftruncate(fd_.get(), static_cast<off_t>(end_) + written);
}

}  // namespace ringtune
