// How long a tensor may wait for ranks that have not come to it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "control/request.h"

namespace ringtune {

struct StallLimits {
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  std::int64_t warning_ns = 60'000'000'000;  // 0 = never warn
  std::int64_t shutdown_ns = 0;              // 0 = never end the job

  /// After which time a tensor that waits for other ranks ends the job: the limit of the job, or its own if that is
  /// shorter; kNever when it has none.
  [[nodiscard]] std::int64_t longest_wait_ns(const Request& request) const noexcept {
    return std::min(shutdown_ns > 0 ? shutdown_ns : kNever, request.timeout_ns > 0 ? request.timeout_ns : kNever);
  }
  /// How long nothing new may come before it is suspicious that every rank waits.
  static constexpr std::int64_t kSuspiciousNs = 1'000'000'000;
  /// When a tensor that comes now is to be looked at first.
  [[nodiscard]] std::int64_t first_look_ns(const Request& request, std::int64_t now_ns) const noexcept {
    return std::min(due_ns(request, now_ns, now_ns), warning_ns > 0 ? now_ns + kSuspiciousNs : kNever);
  }
  /// When a tensor that has waited since `since_ns`, and was last warned of at `warned_ns`, is to be looked at.
  [[nodiscard]] std::int64_t due_ns(const Request& request, std::int64_t since_ns,
                                    std::int64_t warned_ns) const noexcept;
};

/// "rank 1 on host a", "ranks 1-3, 5 on hosts a, b". `hosts` by rank; without them by number alone.
[[nodiscard]] std::string ranks_text(std::span<const int> ranks, std::span<const std::string> hosts);

/// Why the job ends: a tensor has waited longer than it may.
[[nodiscard]] std::string overdue_message(const Request& request, std::int64_t age_ns, std::span<const int> missing,
                                          std::span<const std::string> hosts = {});

}  // namespace ringtune
