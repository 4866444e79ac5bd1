#include "runtime/fusion_buffer.h"

#include <sys/mman.h>

#include <bit>
#include <cstdlib>
#include <new>

namespace ringtune {
namespace {
constexpr std::size_t kPage = 2u << 20;  // huge pages where the system gives them: fewer TLB misses while packing
}

void FusionBuffer::Free::operator()(std::byte* memory) const noexcept { std::free(memory); }

std::span<std::byte> FusionBuffer::take(std::size_t bytes) {
  if (bytes > capacity_) {
    const std::size_t wanted = std::bit_ceil(bytes < kPage ? kPage : bytes);
    memory_.reset();
    capacity_ = 0;
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(kPage, wanted));
    if (memory == nullptr) throw std::bad_alloc();
    (void)::madvise(memory, wanted, MADV_HUGEPAGE);  // advice only: nothing depends on it
    memory_.reset(memory);
    capacity_ = wanted;
  }
  return {memory_.get(), bytes};
}

}  // namespace ringtune
