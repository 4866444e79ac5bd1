// Device memory of other processes: the file behind it is opened by way of /proc, and its pages are laid behind
// addresses of this process. As with a real driver, a process cannot open what it exports itself.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "world.h"

namespace fake_cuda {
namespace {

const std::uint64_t kPage = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));

std::uint64_t page_up(std::uint64_t value) { return (value + kPage - 1) / kPage * kPage; }

}  // namespace

int World::export_memory(std::uint64_t address, IpcHandle& handle) const {
  const auto found = memory.find(address);  // of the whole allocation
  if (found == memory.end() || opened_.contains(address)) return kInvalidValue;
  const std::uint64_t offset = address - reinterpret_cast<std::uint64_t>(base_);
  handle = {::getpid(), file_, offset, found->second, {}};
  return 0;
}

int World::open_memory(const IpcHandle& handle, int device, std::uint64_t& address) {
  if (handle.process == ::getpid()) return kInvalidContext;
  const std::uint64_t inside = handle.offset % kPage;
  const std::size_t bytes = page_up(inside + handle.bytes);
  const std::uint64_t room = allocate(device, bytes + kPage);
  if (room == 0) return kOutOfMemory;
  memory.erase(room);
  const std::string path = "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.file);
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return kMappingFailed;
  const std::uint64_t begin = page_up(room);
  std::byte* const pages = backing_ + (begin - reinterpret_cast<std::uint64_t>(base_));
  const auto offset = static_cast<off_t>(handle.offset - inside);
  void* const mapped = ::mmap(pages, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, offset);
  ::close(file);
  if (mapped == MAP_FAILED) return kMappingFailed;
  address = begin + inside;
  memory[address] = handle.bytes;
  opened_[address] = {pages, bytes};
  return 0;
}

int World::close_memory(std::uint64_t address) {
  const auto found = opened_.find(address);
  if (found == opened_.end()) return kInvalidValue;
  const auto [pages, bytes] = found->second;
  (void)::mmap(pages, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_, pages - backing_);
  memory.erase(address);
  opened_.erase(found);
  return 0;
}

}  // namespace fake_cuda
