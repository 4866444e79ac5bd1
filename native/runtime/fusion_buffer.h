// The memory that fused tensors are packed into. Grows to the largest batch seen and is reused; cycle thread only.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace ringtune {

class FusionBuffer {
 public:
  /// At least `bytes` bytes, aligned to a page; the content is undefined. Throws std::bad_alloc.
  [[nodiscard]] std::span<std::byte> take(std::size_t bytes);

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept;
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t capacity_ = 0;
};

}  // namespace ringtune
