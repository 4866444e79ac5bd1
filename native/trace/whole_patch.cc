#include "trace/whole_patch.h"

#include <sys/mman.h>
#include <unistd.h>

namespace ringtune {
namespace {

constexpr std::size_t kWindowBytes = 1 << 20;  // mapped at once: a new mapping every few hundred blocks

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; older kernels refuse it, which does no harm
#endif

std::int64_t page_bytes() noexcept {
  static const std::int64_t bytes = ::sysconf(_SC_PAGESIZE);
  return bytes;
}

}  // namespace

WholePatch::WholePatch(int file) noexcept
    : file_(file), scratch_(::memfd_create("ringtune-trace", MFD_CLOEXEC)), usable_(scratch_.valid()) {}

WholePatch::~WholePatch() { unmap(); }

bool WholePatch::apply(std::int64_t offset, std::string_view text) noexcept {
  if (!usable_) return false;
  const auto size = static_cast<ssize_t>(text.size());
  usable_ = ::pwrite(scratch_.get(), text.data(), text.size(), 0) == size && map(offset, text.size());
  if (!usable_) return false;
  std::byte* const target = window_ + (offset - window_begin_);
  // Pages that are there already cannot interrupt the copy. Only a hint: the copy itself would fetch them.
  const std::int64_t first_page = offset / page_bytes() * page_bytes();
  (void)::madvise(window_ + (first_page - window_begin_), text.size() + static_cast<std::size_t>(offset - first_page),
                  MADV_POPULATE_WRITE);
  usable_ = ::pread(scratch_.get(), target, text.size(), 0) == size;
  return usable_;
}

bool WholePatch::map(std::int64_t offset, std::size_t bytes) noexcept {
  const std::int64_t end = offset + static_cast<std::int64_t>(bytes);
  const auto window = static_cast<std::int64_t>(kWindowBytes);
  if (window_ != nullptr && offset >= window_begin_ && end <= window_begin_ + window) return true;
  unmap();
  window_begin_ = offset / page_bytes() * page_bytes();
  if (end > window_begin_ + window) return false;
  // Reaching beyond the end of the file is allowed as long as nobody touches it there.
  void* const mapped = ::mmap(nullptr, kWindowBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, window_begin_);
  if (mapped == MAP_FAILED) return false;
  window_ = static_cast<std::byte*>(mapped);
  return true;
}

void WholePatch::unmap() noexcept {
  if (window_ != nullptr) ::munmap(window_, kWindowBytes);
  window_ = nullptr;
}

}  // namespace ringtune
