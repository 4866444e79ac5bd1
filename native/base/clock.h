// Time. One clock everywhere: CLOCK_MONOTONIC in nanoseconds (equal for all processes of one host).
#pragma once

#include <cstdint>
#include <limits>

namespace ringtune {

[[nodiscard]] std::int64_t now_ns() noexcept;       // CLOCK_MONOTONIC
[[nodiscard]] std::int64_t unix_now_ns() noexcept;  // CLOCK_REALTIME, for headers only

/// A point in monotonic time after which a wait gives up. Value type.
class Deadline {
 public:
  static Deadline never() noexcept { return Deadline(std::numeric_limits<std::int64_t>::max()); }
  static Deadline at(std::int64_t when_ns) noexcept { return Deadline(when_ns); }
  static Deadline after(std::int64_t delay_ns) noexcept;  // saturates
  [[nodiscard]] bool expired() const noexcept;
  [[nodiscard]] std::int64_t remaining_ns() const noexcept;  // >= 0; max() when never
  [[nodiscard]] bool is_never() const noexcept { return when_ns_ == std::numeric_limits<std::int64_t>::max(); }
  [[nodiscard]] std::int64_t when_ns() const noexcept { return when_ns_; }
  friend Deadline earlier(Deadline a, Deadline b) noexcept { return a.when_ns_ < b.when_ns_ ? a : b; }

 private:
  explicit Deadline(std::int64_t when_ns) noexcept : when_ns_(when_ns) {}
  std::int64_t when_ns_;
};

}  // namespace ringtune
