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

}  // namespace
}  // namespace ringtune::device
