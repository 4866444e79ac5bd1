// How much memory this process has in use, without what the allocator keeps of freed memory.
#pragma once

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#include <malloc.h>
#endif

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// Of the sanitizers' runtime; GCC does not install the header that declares it.
extern "C" std::size_t __sanitizer_get_current_allocated_bytes();
#endif

namespace ringtune::testing_support {

inline std::size_t allocated_bytes() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return __sanitizer_get_current_allocated_bytes();
#else
#if __GLIBC_PREREQ(2, 33)
  const auto in_use = ::mallinfo2();
#else
  const auto in_use = ::mallinfo();
#endif
  return static_cast<std::size_t>(in_use.uordblks) + static_cast<std::size_t>(in_use.hblkhd);
#endif
}

}  // namespace ringtune::testing_support
