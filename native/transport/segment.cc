#include "transport/segment.h"

#include <fcntl.h>

#include <algorithm>
#include <bit>
#include <new>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace ringtune {
namespace {

constexpr std::uint64_t kSegmentMagic = 0x72696e677365676dull;  // "ringsegm"

constexpr std::size_t index_of(SegmentSide side) noexcept { return static_cast<std::size_t>(side); }

}  // namespace

struct DuplexSegment::Header {
  std::uint64_t magic = kSegmentMagic;
  std::uint64_t token = 0;
  std::uint64_t capacity = 0;
  std::atomic<std::uint32_t> joined[2]{};
  std::atomic<std::uint32_t> closed[2]{};
  RingControl rings[2];
};

DuplexSegment::DuplexSegment(Fd fd, std::size_t capacity)
    : fd_(std::move(fd)),
      header_(map_segment(fd_.get(), 0, page_bytes())),
      data_{map_mirrored(fd_.get(), page_bytes(), capacity),
            map_mirrored(fd_.get(), page_bytes() + capacity, capacity)},
      capacity_(capacity) {
  static_assert(sizeof(Header) <= 4096, "the header fits in the smallest page");
}

DuplexSegment DuplexSegment::create(std::size_t ring_bytes) {
  const std::size_t capacity = std::bit_ceil(std::max(ring_bytes, page_bytes()));
  DuplexSegment segment(create_segment("ringtune-link", page_bytes() + 2 * capacity), capacity);
  auto* header = new (segment.header_.data()) Header;
  header->token = random_token();
  header->capacity = capacity;
  return segment;
}

DuplexSegment DuplexSegment::attach(int pid, int fd, std::uint64_t token) {
  Fd opened = open_peer_fd(pid, fd, O_RDWR);
  const std::size_t bytes = segment_bytes(opened.get());
  const std::size_t capacity = (bytes - std::min(bytes, page_bytes())) / 2;
  if (!std::has_single_bit(capacity) || capacity % page_bytes() != 0) {
    throw Error("descriptor " + std::to_string(fd) + " of process " + std::to_string(pid) + " is not a shared segment");
  }
  DuplexSegment segment(std::move(opened), capacity);
  segment.detach_fd();
  const Header& header = segment.header();
  if (header.magic != kSegmentMagic || header.token != token || header.capacity != capacity) {
    throw Error("the shared segment of process " + std::to_string(pid) + " is not the expected one");
  }
  return segment;
}

DuplexSegment::Header& DuplexSegment::header() const noexcept { return *reinterpret_cast<Header*>(header_.data()); }

std::uint64_t DuplexSegment::token() const noexcept { return header().token; }

RingView DuplexSegment::ring_of(SegmentSide side) const noexcept {
  const std::size_t index = index_of(side);
  return {.control = &header().rings[index], .data = data_[index].data(), .capacity = capacity_};
}

// release and acquire: a side that sees the flag also sees what the other wrote before (the last bytes of a closed
// ring).
void DuplexSegment::mark_joined(SegmentSide side, bool joined) const noexcept {
  header().joined[index_of(side)].store(joined ? 1 : 0, std::memory_order_release);
}

bool DuplexSegment::joined(SegmentSide side) const noexcept {
  return header().joined[index_of(side)].load(std::memory_order_acquire) != 0;
}

void DuplexSegment::mark_closed(SegmentSide side) const noexcept {
  header().closed[index_of(side)].store(1, std::memory_order_release);
}

bool DuplexSegment::closed(SegmentSide side) const noexcept {
  return header().closed[index_of(side)].load(std::memory_order_acquire) != 0;
}

}  // namespace ringtune
