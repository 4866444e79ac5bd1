// A bounded queue for one producer thread and one consumer thread, without locks.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>

#include "base/check.h"

namespace ringtune {

/// Owns a buffer of `capacity` elements (a power of two). Exactly one thread calls try_push, exactly one (other) thread
/// calls readable/consume; the roles may move to another thread only through a synchronising hand-over. Never blocks;
/// no allocation after construction; the constructor throws InvariantError for a bad capacity.
///
/// Indices run freely and are masked on access, so full and empty differ without a spare slot.
template <typename T>
class SpscRing {
  static_assert(std::is_trivially_copyable_v<T>, "elements are overwritten without destruction");

 public:
  explicit SpscRing(std::size_t capacity) : mask_(capacity - 1), slots_(new T[capacity]) {
    RINGTUNE_CHECK(std::has_single_bit(capacity), "capacity ", capacity, " is not a power of two");
  }
  SpscRing(const SpscRing&) = delete;
  SpscRing& operator=(const SpscRing&) = delete;

  [[nodiscard]] std::size_t capacity() const noexcept { return mask_ + 1; }

  /// Producer. False when full. `publish` is release, or seq_cst when the producer then looks at a flag by which the
  /// consumer says that it sleeps (store of the tail, load of the flag: only seq_cst keeps that order).
  bool try_push(const T& value, std::memory_order publish = std::memory_order_release) noexcept {
    return try_push_all(std::span(&value, 1), publish);
  }

  /// Producer. All of them or none: false when there is not room for all.
  bool try_push_all(std::span<const T> values, std::memory_order publish = std::memory_order_release) noexcept {
    const std::size_t tail = tail_.load(std::memory_order_relaxed);  // only this thread writes tail_
    if (tail + values.size() - cached_head_ > mask_ + 1) {
      // acquire: the consumer has finished reading a slot before it releases it through head_.
      cached_head_ = head_.load(std::memory_order_acquire);
      if (tail + values.size() - cached_head_ > mask_ + 1) return false;
    }
    for (std::size_t i = 0; i < values.size(); ++i) slots_[(tail + i) & mask_] = values[i];
    // Release: a thread that sees the new tail sees the slots.
    tail_.store(tail + values.size(), publish);
    return true;
  }

  /// Consumer. The longest contiguous run of unread elements; empty when none. Valid until consume().
  [[nodiscard]] std::span<const T> readable() const noexcept {
    const std::size_t head = head_.load(std::memory_order_relaxed);  // only this thread writes head_
    const std::size_t tail = tail_.load(std::memory_order_acquire);  // pairs with the release in try_push
    const std::size_t at = head & mask_;
    const std::size_t until_wrap = mask_ + 1 - at;
    const std::size_t count = tail - head;
    return {slots_.get() + at, count < until_wrap ? count : until_wrap};
  }

  /// Consumer. `count` <= readable().size().
  void consume(std::size_t count) noexcept {
    // release: our reads of the slots come before the producer may overwrite them.
    head_.store(head_.load(std::memory_order_relaxed) + count, std::memory_order_release);
  }

  /// Any thread; a snapshot. seq_cst for the counterpart of `publish`: a consumer that has stored its intent to sleep
  /// looks here.
  [[nodiscard]] bool empty() const noexcept {
    return head_.load(std::memory_order_acquire) == tail_.load(std::memory_order_seq_cst);
  }

 private:
  // Producer's, consumer's and shared constant data on cache lines of their own: no false sharing.
  alignas(64) std::atomic<std::size_t> tail_{0};
  std::size_t cached_head_ = 0;
  alignas(64) std::atomic<std::size_t> head_{0};
  alignas(64) const std::size_t mask_;
  std::unique_ptr<T[]> slots_;
};

}  // namespace ringtune
