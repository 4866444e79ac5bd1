// One direction of a shared-memory link: a ring of bytes with one producer and one consumer.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/waker.h"

namespace ringtune {

/// The words both sides share; zeroed memory is an empty ring. Positions are byte counts since the start and never
/// wrap. Each word that one side writes often has a cache line of its own.
struct RingControl {
  alignas(64) std::atomic<std::uint64_t> tail{0};          // bytes produced; written by the producer
  alignas(64) std::atomic<std::uint64_t> head{0};          // bytes consumed; written by the consumer
  alignas(64) std::atomic<std::uint32_t> sender_waits{0};  // rare: a full ring
};

/// The storage of a ring as one side sees it. Borrows all: control words, mirrored data (see map_mirrored), capacity =
/// 2^n.
struct RingView {
  RingControl* control = nullptr;
  std::byte* data = nullptr;
  std::size_t capacity = 0;
};

/// Producer side; one thread at a time; never blocks.
class RingSender {
 public:
  RingSender(RingView ring, Bell& consumer) noexcept;
  /// Copies in what fits and rings the consumer's bell after every piece, so that it reads while the rest is copied.
  /// When less than all fits, the consumer will ring this side's bell once it has made room.
  std::size_t write(std::span<const std::byte> bytes) noexcept;

 private:
  [[nodiscard]] std::size_t room(std::size_t wanted) noexcept;
  [[nodiscard]] std::size_t room_or_flag(std::size_t wanted) noexcept;

  RingView ring_;
  Bell& consumer_;
  std::uint64_t tail_;
  std::uint64_t seen_head_;
};

/// Consumer side; one thread at a time; never blocks.
class RingReceiver {
 public:
  RingReceiver(RingView ring, Bell& producer) noexcept;
  /// All unconsumed bytes in one piece (the mirror makes them contiguous). Throws Protocol when the words make no
  /// sense.
  [[nodiscard]] std::span<const std::byte> peek();
  /// At most what peek() showed (InvariantError otherwise).
  void consume(std::size_t bytes);

 private:
  RingView ring_;
  Bell& producer_;
  std::uint64_t head_;
  std::uint64_t seen_tail_;
};

}  // namespace ringtune
