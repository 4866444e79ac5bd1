// The rings of all recording threads of one tracer. Internal to trace/.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/spsc_ring.h"
#include "trace/span.h"

namespace ringtune {

/// One thread's ring. Shared between the tracer and the thread, so that either may end first.
struct ThreadRing {
  explicit ThreadRing(std::size_t capacity) : spans(capacity) {}
  SpscRing<Span> spans;
  std::uint64_t pushed = 0;               // by the owner thread only
  std::atomic<std::uint64_t> dropped{0};  // written by the owner thread, read by any
  std::atomic<bool> owner_ended{false};
};

/// Thread-safe. A thread that ends gives its ring back; a later thread takes it over.
class ThreadRings {
 public:
  explicit ThreadRings(std::size_t ring_spans);
  ThreadRings(const ThreadRings&) = delete;
  ThreadRings& operator=(const ThreadRings&) = delete;

  /// The calling thread's ring: a few nanoseconds except for the thread's first call, which takes a lock and may
  /// allocate. Null when the thread is ending or memory is short.
  [[nodiscard]] ThreadRing* mine() noexcept;
  /// All rings there are; the tracer never removes one.
  [[nodiscard]] std::vector<std::shared_ptr<ThreadRing>> all() const;
  [[nodiscard]] bool all_empty() const;
  [[nodiscard]] std::uint64_t dropped() const;
  [[nodiscard]] std::size_t count() const;

 private:
  ThreadRing* attach();
  [[nodiscard]] std::shared_ptr<ThreadRing> take_over_or_make();
  const std::uint64_t id_;  // never used twice in a process: a stale entry of a thread matches no later tracer
  const std::size_t ring_spans_;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<ThreadRing>> rings_;
};

}  // namespace ringtune
