// RINGTUNE_CHECK(condition, message...) and RINGTUNE_CHECK_EQ/NE/LT/LE/GT/GE(a, b, message...): a failed check is a bug
// in ringtune and throws InvariantError with the expression, both operands, file and line. `message...` is streamed.
#pragma once

#include <sstream>
#include <string>

#include "base/error.h"

namespace ringtune::detail {

template <typename... Parts>
[[noreturn]] void check_failed(const char* file, int line, const std::string& what, const Parts&... parts) {
  std::ostringstream out;
  out << "bug in ringtune at " << file << ":" << line << ": " << what;
  if constexpr (sizeof...(parts) > 0) {
    out << ": ";
    (out << ... << parts);
  }
  throw InvariantError(out.str());
}

template <typename A, typename B>
std::string operands(const char* expression, const A& a, const B& b) {
  std::ostringstream out;
  out << "check failed: " << expression << " (" << a << " against " << b << ")";
  return out.str();
}

}  // namespace ringtune::detail

#define RINGTUNE_CHECK(condition, ...)                                                                              \
  do {                                                                                                              \
    if (!(condition)) [[unlikely]]                                                                                  \
      ::ringtune::detail::check_failed(__FILE__, __LINE__, "check failed: " #condition __VA_OPT__(, ) __VA_ARGS__); \
  } while (false)

#define RINGTUNE_CHECK_OP_(a, op, b, ...)                                                                        \
  do {                                                                                                           \
    const auto& ringtune_a_ = (a);                                                                               \
    const auto& ringtune_b_ = (b);                                                                               \
    if (!(ringtune_a_ op ringtune_b_)) [[unlikely]]                                                              \
      ::ringtune::detail::check_failed(__FILE__, __LINE__,                                                       \
                                       ::ringtune::detail::operands(#a " " #op " " #b, ringtune_a_, ringtune_b_) \
                                           __VA_OPT__(, ) __VA_ARGS__);                                          \
  } while (false)

#define RINGTUNE_CHECK_EQ(a, b, ...) RINGTUNE_CHECK_OP_(a, ==, b __VA_OPT__(, ) __VA_ARGS__)
#define RINGTUNE_CHECK_LT(a, b, ...) RINGTUNE_CHECK_OP_(a, <, b __VA_OPT__(, ) __VA_ARGS__)
#define RINGTUNE_CHECK_LE(a, b, ...) RINGTUNE_CHECK_OP_(a, <=, b __VA_OPT__(, ) __VA_ARGS__)
#define RINGTUNE_CHECK_GE(a, b, ...) RINGTUNE_CHECK_OP_(a, >=, b __VA_OPT__(, ) __VA_ARGS__)
