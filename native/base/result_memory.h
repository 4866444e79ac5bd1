// Memory for results that callers keep: uninitialised, and given again to the next result of about its size. Fresh
// pages from the kernel cost more than most collectives do: 64 MiB some 20 ms, where a broadcast takes 7.
#pragma once

#include <cstddef>
#include <utility>

namespace ringtune {

/// Owns bytes; move-only, not initialised. The destructor may run on any thread, also in a forked child.
class ResultMemory {
 public:
  ResultMemory() noexcept = default;
  /// Aligned to 64 bytes at least. Throws std::bad_alloc.
  explicit ResultMemory(std::size_t bytes);
  ResultMemory(ResultMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  ResultMemory& operator=(ResultMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(capacity_, other.capacity_);
    return *this;
  }
  ~ResultMemory();

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }
  [[nodiscard]] bool empty() const noexcept { return bytes_ == 0; }
  [[nodiscard]] std::byte* begin() const noexcept { return data_; }
  [[nodiscard]] std::byte* end() const noexcept { return data_ + bytes_; }

  /// What is kept for the next results, at most; larger ones go back to the kernel.
  static constexpr std::size_t kMostKept = std::size_t{128} << 20;
  /// Bytes that are kept at this moment, and no more.
  [[nodiscard]] static std::size_t kept() noexcept;
  /// Gives all that is kept back to the kernel.
  static void trim() noexcept;

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace ringtune
