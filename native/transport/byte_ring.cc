#include "transport/byte_ring.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/error.h"

namespace ringtune {
namespace {

// Small enough to stay in the producer's cache until the consumer takes it, large enough to make ringing cheap.
constexpr std::size_t kPieceBytes = 64 << 10;

}  // namespace

RingSender::RingSender(RingView ring, Bell& consumer) noexcept
    : ring_(ring),
      consumer_(consumer),
      tail_(ring.control->tail.load(std::memory_order_relaxed)),
      seen_head_(ring.control->head.load(std::memory_order_acquire)) {}

std::size_t RingSender::room(std::size_t wanted) noexcept {
  std::size_t free = ring_.capacity - (tail_ - seen_head_);
  if (free < wanted) {  // look at the consumer's cache line only when the remembered value is not enough
    // acquire: the consumer has finished reading the bytes it gave back; they may be overwritten now.
    seen_head_ = ring_.control->head.load(std::memory_order_acquire);
    free = ring_.capacity - (tail_ - seen_head_);
  }
  return std::min(free, wanted);
}

// The flag and the head are a pair as in Dekker's algorithm: this side writes the flag and reads the head, the consumer
// writes the head and reads the flag. With seq_cst on all four at least one of them sees the other, so either this side
// finds the room or the consumer finds the flag and rings.
std::size_t RingSender::room_or_flag(std::size_t wanted) noexcept {
  const std::size_t free = room(wanted);
  if (free == wanted) return free;
  ring_.control->sender_waits.store(1, std::memory_order_seq_cst);
  seen_head_ = ring_.control->head.load(std::memory_order_seq_cst);
  return room(wanted);
}

std::size_t RingSender::write(std::span<const std::byte> bytes) noexcept {
  std::size_t written = 0;
  while (written < bytes.size()) {
    const std::size_t count = room_or_flag(std::min(bytes.size() - written, kPieceBytes));
    if (count == 0) break;
    std::memcpy(ring_.data + (tail_ & (ring_.capacity - 1)), bytes.data() + written, count);
    tail_ += count;
    written += count;
    // release: the bytes are there before the consumer sees the new tail.
    ring_.control->tail.store(tail_, std::memory_order_release);
    consumer_.notify();
  }
  return written;
}

RingReceiver::RingReceiver(RingView ring, Bell& producer) noexcept
    : ring_(ring),
      producer_(producer),
      head_(ring.control->head.load(std::memory_order_relaxed)),
      seen_tail_(ring.control->tail.load(std::memory_order_acquire)) {}

std::span<const std::byte> RingReceiver::peek() {
  // acquire: pairs with the release of the tail; the bytes before it are readable.
  seen_tail_ = ring_.control->tail.load(std::memory_order_acquire);
  const std::uint64_t available = seen_tail_ - head_;
  if (available > ring_.capacity) [[unlikely]] {
    throw Protocol("a shared-memory ring is corrupt: " + std::to_string(available) + " bytes waiting in a ring of " +
                   std::to_string(ring_.capacity) + "; some process wrote over the segment");
  }
  return {ring_.data + (head_ & (ring_.capacity - 1)), static_cast<std::size_t>(available)};
}

void RingReceiver::consume(std::size_t bytes) {
  RINGTUNE_CHECK_LE(bytes, seen_tail_ - head_, "consumed more than was shown");
  if (bytes == 0) return;
  head_ += bytes;
  // seq_cst (which includes release: the reads of the bytes are done): see room_or_flag.
  ring_.control->head.store(head_, std::memory_order_seq_cst);
  if (ring_.control->sender_waits.load(std::memory_order_seq_cst) != 0) {
    // relaxed: should this erase a flag set just now, the ring that follows still reaches that sender.
    ring_.control->sender_waits.store(0, std::memory_order_relaxed);
    producer_.notify();
  }
}

}  // namespace ringtune
