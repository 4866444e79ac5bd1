#include "transport/shm_region.h"

#include <fcntl.h>
#include <unistd.h>

#include <new>
#include <string>
#include <utility>

#include "base/error.h"
#include "transport/shm_thresholds.h"

namespace ringtune {
namespace {

constexpr std::uint64_t kRegionMagic = 0x72696e676172656eull;  // "ringaren"

/// From how many bytes on messages that follow one another stay in one set of slots.
std::size_t least_kept() noexcept {
  return ::sysconf(_SC_LEVEL2_CACHE_SIZE) >= kShmThresholds.large_cache ? kShmThresholds.least_in_one_set_of_large_cache
                                                                        : kShmThresholds.least_in_one_set;
}

// On two threads of one of AMD's cores only slots that do not change hands have been measured.
bool changes_owner_in_one_core() noexcept {
#if defined(__x86_64__)
  return !__builtin_cpu_is("amd");
#else
  return true;
#endif
}

}  // namespace

ShmRegion::ShmRegion(Fd fd, std::size_t bytes) : fd_(std::move(fd)), memory_(map_segment(fd_.get(), 0, bytes)) {}

ShmRegion ShmRegion::create(std::size_t slot_bytes, std::size_t slots) {
  static_assert(sizeof(Header) <= 4096 && sizeof(DistanceLines) <= 4096, "each fits in the smallest page");
  const std::size_t bytes = bytes_before_slots() + 2 * slots * slot_bytes;
  ShmRegion region(create_segment("ringtune-shm-group", bytes), bytes);
  auto* header = new (region.memory_.data()) Header;
  header->magic = kRegionMagic;
  header->token = random_token();
  header->least_kept = least_kept();
  header->changes_owner_in_one_core = changes_owner_in_one_core() ? 1 : 0;
  header->slot_bytes = slot_bytes;
  header->slots = slots;
  new (region.memory_.data() + page_bytes()) DistanceLines;
  return region;
}

ShmRegion ShmRegion::attach(int pid, int fd, std::uint64_t token) {
  Fd opened = open_peer_fd(pid, fd, O_RDWR);
  const std::size_t bytes = segment_bytes(opened.get());
  if (bytes < bytes_before_slots())
    throw Error("the shared memory of process " + std::to_string(pid) + " is too small");
  ShmRegion region(std::move(opened), bytes);
  region.detach_fd();
  const Header& header = region.header();
  if (header.magic != kRegionMagic || header.token != token ||
      bytes != bytes_before_slots() + 2 * header.slots * header.slot_bytes) {
    throw Error("the shared memory of process " + std::to_string(pid) + " is not the expected one");
  }
  return region;
}

ShmRegion::Header& ShmRegion::header() const noexcept { return *reinterpret_cast<Header*>(memory_.data()); }
std::uint64_t ShmRegion::token() const noexcept { return header().token; }
DistanceLines& ShmRegion::distance_lines() const noexcept {
  return *reinterpret_cast<DistanceLines*>(memory_.data() + page_bytes());
}
std::size_t ShmRegion::bytes_before_slots() noexcept { return 2 * page_bytes(); }
std::byte* ShmRegion::slot(std::size_t index) const noexcept {
  return memory_.data() + bytes_before_slots() + index * header().slot_bytes;
}

}  // namespace ringtune
