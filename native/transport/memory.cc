#include "transport/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace ringtune {

Mapping::Mapping(Mapping&& other) noexcept
    : address_(std::exchange(other.address_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (address_ != nullptr) ::munmap(address_, bytes_);
}

std::size_t page_bytes() noexcept {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

void throw_errno(const std::string& what) {
  const int code = errno;
  throw Error(what + ": " + std::generic_category().message(code));
}

Fd create_segment(const char* name, std::size_t bytes) {
  Fd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) throw_errno("cannot create shared memory (memfd_create)");
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    throw_errno("cannot size a shared segment of " + std::to_string(bytes) + " bytes");
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    throw_errno("cannot seal a shared segment");
  }
  return fd;
}

Fd open_peer_fd(int pid, int fd, int flags) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  Fd opened(::open(path.c_str(), flags | O_CLOEXEC));
  if (!opened) throw_errno("cannot open " + path);
  return opened;
}

std::size_t segment_bytes(int fd) {
  struct stat status{};
  if (::fstat(fd, &status) != 0) throw_errno("cannot read the size of a shared segment");
  return static_cast<std::size_t>(status.st_size);
}

Mapping map_segment(int fd, std::size_t offset, std::size_t bytes) {
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (address == MAP_FAILED) throw_errno("cannot map " + std::to_string(bytes) + " bytes of shared memory");
  return Mapping(address, bytes);
}

Mapping map_mirrored(int fd, std::size_t offset, std::size_t bytes) {
  // Reserve the whole range first, then put both copies over it: nobody else can map in between.
  void* range = ::mmap(nullptr, 2 * bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) throw_errno("cannot reserve " + std::to_string(2 * bytes) + " bytes of address space");
  Mapping mapping(range, 2 * bytes);
  for (const std::size_t copy : {std::size_t{0}, bytes}) {
    void* address = ::mmap(mapping.data() + copy, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
                           static_cast<off_t>(offset));
    if (address == MAP_FAILED) throw_errno("cannot map a ring of " + std::to_string(bytes) + " bytes");
  }
  return mapping;
}

std::uint64_t random_token() {
  std::uint64_t token = 0;
  while (::getrandom(&token, sizeof(token), 0) != sizeof(token)) {
    if (errno != EINTR) throw_errno("cannot get random bytes");
  }
  return token;
}

}  // namespace ringtune
