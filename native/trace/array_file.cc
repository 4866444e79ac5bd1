#include "trace/array_file.h"

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "base/error.h"

namespace ringtune {
namespace {

constexpr std::string_view kClose = "\n]\n";

[[noreturn]] void throw_io(const char* action, const std::string& path, int error) {
  throw TraceIo(std::string("cannot ") + action + " the timeline file " + path + ": " +
                std::generic_category().message(error));
}

}  // namespace

ArrayFile::ArrayFile(const std::string& path)
    : path_(path), fd_(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)), patch_(fd_.get()) {
  if (!fd_) throw_io("create", path_, errno);
  buffer_.reserve(2 * kBlockBytes);
  write_at(0, "[" + std::string(kClose));
  end_ = 1;
}

void ArrayFile::flush() {
  if (buffer_.empty()) return;
  const auto block = static_cast<std::int64_t>(buffer_.size());
  buffer_ += kClose;
  try {
    lay_over(buffer_);
  } catch (...) {
    buffer_.clear();
    cut_back();
    throw;
  }
  end_ += block;
  buffer_.clear();
}

void ArrayFile::lay_over(std::string_view block) {
  const auto close = static_cast<std::int64_t>(kClose.size());
  // Also finds a full disk while nothing but blanks can be cut short.
  write_at(end_ + close, std::string(block.size() - kClose.size(), ' '));
  if (!patch_.apply(end_, block)) write_at(end_, block);
}

void ArrayFile::write_at(std::int64_t offset, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::pwrite(fd_.get(), text.data(), text.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) throw_io("write", path_, written == 0 ? ENOSPC : errno);
    offset += written;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

/// The bytes of the closing bracket were in the file before, so a full disk has room for them.
void ArrayFile::cut_back() noexcept {
  const ssize_t written = ::pwrite(fd_.get(), kClose.data(), kClose.size(), static_cast<off_t>(end_));
  if (written > 0) (void)!::ftruncate(fd_.get(), static_cast<off_t>(end_) + written);
}

}  // namespace ringtune
