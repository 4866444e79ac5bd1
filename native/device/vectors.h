// Vectors of the compilers' extension (GCC, Clang), and how they come from and go to memory at any address. Everything
// here has internal linkage: kernel files compile it for their own instruction set (see kernel_loops.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace ringtune::device {
namespace {

template <typename T, std::size_t Bytes>
struct VectorOf {
  using Type [[gnu::vector_size(Bytes)]] = T;
};
/// `Bytes / sizeof(T)` lanes of T.
template <typename T, std::size_t Bytes>
using Vector = typename VectorOf<T, Bytes>::Type;

/// The value at any address, whatever type the memory was written as.
template <typename V>
[[gnu::always_inline]] inline V load_loose(const std::byte* at) noexcept {
  V value;
  __builtin_memcpy(&value, at, sizeof(V));
  return value;
}
/// Returns the value.
template <typename V>
[[gnu::always_inline]] inline V store_loose(std::byte* at, V value) noexcept {
  __builtin_memcpy(at, &value, sizeof(V));
  return value;
}

/// How far ahead of their use lines are asked for that come from another core's caches or from memory.
constexpr std::size_t kFetchedAhead = 2048;

/// Asks for the lines of `Bytes` bytes that lie so far behind `at`, into the second-level cache: the processor's own
/// prefetching ends at each page and begins anew in the next. Wherever that is: what is no memory is not fetched.
template <std::size_t Bytes>
[[gnu::always_inline]] inline void fetch_ahead(const std::byte* at) noexcept {
  constexpr std::size_t kLine = 64;
  for (std::size_t line = 0; line < Bytes; line += kLine) __builtin_prefetch(at + kFetchedAhead + line, 0, 2);
}

}  // namespace
}  // namespace ringtune::device
