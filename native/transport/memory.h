// Anonymous shared memory. A segment is a memfd: it has no name in any file system, so nothing can be left behind
// however the process ends, and a peer of the same user opens it through /proc/<pid>/fd/<number>.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/fd.h"

namespace ringtune {

/// Owns an address range and unmaps it; move-only. Never throws after construction.
class Mapping {
 public:
  Mapping() noexcept = default;
  Mapping(void* address, std::size_t bytes) noexcept : address_(static_cast<std::byte*>(address)), bytes_(bytes) {}
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();
  [[nodiscard]] std::byte* data() const noexcept { return address_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::byte* address_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Size of a page (4096 on x86).
[[nodiscard]] std::size_t page_bytes() noexcept;

/// A zeroed segment of `bytes`, sealed against resizing (a peer cannot cause SIGBUS). Throws Error.
[[nodiscard]] Fd create_segment(const char* name, std::size_t bytes);

/// Opens what descriptor `fd` of process `pid` refers to (a memfd or a pipe), read-write. Needs the same user and pid
/// namespace. Throws Error with path and reason.
[[nodiscard]] Fd open_peer_fd(int pid, int fd, int flags);

/// Size of the segment behind `fd`. Throws Error.
[[nodiscard]] std::size_t segment_bytes(int fd);

/// Maps `bytes` from `offset`, shared and writable. Throws Error.
[[nodiscard]] Mapping map_segment(int fd, std::size_t offset, std::size_t bytes);

/// Maps the same `bytes` (a multiple of the page) twice in a row, so that a range that starts in the first copy never
/// wraps. Throws Error.
[[nodiscard]] Mapping map_mirrored(int fd, std::size_t offset, std::size_t bytes);

/// A number that no other call on this machine gives (getrandom).
[[nodiscard]] std::uint64_t random_token();

/// `what` + ": " + strerror(errno), as Error.
[[noreturn]] void throw_errno(const std::string& what);

}  // namespace ringtune
