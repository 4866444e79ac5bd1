#include "base/log.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <string>

#include "base/clock.h"

namespace ringtune {
namespace {

// Relaxed everywhere: a level or rank that is seen a moment late does no harm, and nothing is published through them.
std::atomic<LogLevel> g_level{LogLevel::kWarning};
std::atomic<int> g_rank{-1};

std::string format_line(LogLevel level, std::string_view message) {
  std::string line = "ringtune ";
  line += name_of(level);
  const int rank = g_rank.load(std::memory_order_relaxed);
  if (rank >= 0) line += " [rank " + std::to_string(rank) + "]";
  line += ": ";
  for (const char c : message) {
    line += c;
    if (c == '\n') line += "    ";
  }
  line += '\n';
  return line;
}

}  // namespace

std::string_view name_of(LogLevel level) noexcept {
  constexpr std::array<std::string_view, 6> kNames{"trace", "debug", "info", "warning", "error", "fatal"};
  const auto index = static_cast<std::size_t>(level);
  return index < kNames.size() ? kNames[index] : "log";
}

void set_log_level(LogLevel level) noexcept { g_level.store(level, std::memory_order_relaxed); }
LogLevel log_level() noexcept { return g_level.load(std::memory_order_relaxed); }
void set_log_rank(int rank) noexcept { g_rank.store(rank, std::memory_order_relaxed); }

void log_line(LogLevel level, std::string_view message) noexcept {
  if (!log_enabled(level)) return;
  try {
    const std::string line = format_line(level, message);
    // A lost log line must never stop training: errors of stderr are ignored, a signal only repeats the call.
    while (::write(STDERR_FILENO, line.data(), line.size()) < 0 && errno == EINTR) {
    }
  } catch (...) {  // out of memory while formatting: nothing sensible is left to do
  }
}

void RareWarning::warn(std::string_view what, std::string_view why) noexcept {
  constexpr std::int64_t kPauseNs = 60'000'000'000;
  const std::int64_t now = now_ns();
  std::int64_t next = next_ns_.load(std::memory_order_relaxed);
  // Relaxed: the numbers stand for nothing but themselves. Of several threads the one that moves the moment writes.
  if (now < next || !next_ns_.compare_exchange_strong(next, now + kPauseNs, std::memory_order_relaxed)) {
    left_out_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  const std::uint64_t left_out = left_out_.exchange(0, std::memory_order_relaxed);
  try {
    const std::string more = left_out == 0 ? "" : " (" + std::to_string(left_out) + " more since the last such line)";
    log(LogLevel::kWarning, what, why, more);
  } catch (...) {  // out of memory while formatting: nothing sensible is left to do
  }
}

}  // namespace ringtune
