#pragma once

#include <cstdint>

namespace ringtune::testing_support {

/// How many random cases a test plays: all, or a part of them where a sanitizer makes every one some thirty times as
/// long.
constexpr std::uint32_t repeats(std::uint32_t all, [[maybe_unused]] std::uint32_t part = 10) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return all / part;
#else
  return all;
#endif
}

}  // namespace ringtune::testing_support
