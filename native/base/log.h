// A small logger: one line to stderr per message, written with a single write() so that ranks do not mix within a line.
#pragma once

#include <atomic>
#include <cstdint>
#include <sstream>
#include <string_view>

namespace ringtune {

/// Numbers are those of RuntimeOptions.log_level.
enum class LogLevel : std::uint8_t { kTrace = 0, kDebug = 1, kInfo = 2, kWarning = 3, kError = 4, kFatal = 5 };
[[nodiscard]] std::string_view name_of(LogLevel level) noexcept;

/// Process-wide; thread-safe; never throw. Messages below the level are dropped. Default: kWarning.
void set_log_level(LogLevel level) noexcept;
[[nodiscard]] LogLevel log_level() noexcept;
/// Shown in front of each line; -1 (default) = unknown.
void set_log_rank(int rank) noexcept;
[[nodiscard]] inline bool log_enabled(LogLevel level) noexcept { return level >= log_level(); }

/// "ringtune warning [rank 0]: <message>\n". Line breaks in the message become "\n    ". Any thread; never throws.
void log_line(LogLevel level, std::string_view message) noexcept;

/// Streams the parts into one line; formats nothing when the level is off. May allocate: not for the hot path.
template <typename... Parts>
void log(LogLevel level, const Parts&... parts) {
  if (!log_enabled(level)) return;
  std::ostringstream out;
  (out << ... << parts);
  log_line(level, out.str());
}

/// A warning that may be called for again and again: one line a minute, with the number of those left out before it.
/// Thread-safe; never throws.
class RareWarning {
 public:
  void warn(std::string_view what, std::string_view why) noexcept;

 private:
  std::atomic<std::int64_t> next_ns_{0};  // no line before this moment
  std::atomic<std::uint64_t> left_out_{0};
};

}  // namespace ringtune
