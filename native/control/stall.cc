#include "control/stall.h"

#include <algorithm>
#include <sstream>
#include <vector>

namespace ringtune {

std::int64_t StallLimits::due_ns(const Request& request, std::int64_t since_ns, std::int64_t warned_ns) const noexcept {
  const std::int64_t limit_ns = longest_wait_ns(request);
  return std::min(warning_ns > 0 ? warned_ns + warning_ns : kNever, limit_ns != kNever ? since_ns + limit_ns : kNever);
}

std::string ranks_text(std::span<const int> ranks, std::span<const std::string> hosts) {
  std::vector<std::string> names;
  for (const int rank : ranks) {
    if (static_cast<std::size_t>(rank) >= hosts.size()) continue;
    const std::string& host = hosts[static_cast<std::size_t>(rank)];
    if (std::find(names.begin(), names.end(), host) == names.end()) names.push_back(host);
  }
  std::string text = (ranks.size() > 1 ? "ranks " : "rank ") + rank_list(ranks);
  if (names.empty()) return text;
  constexpr std::size_t kNamed = 4;
  text += names.size() > 1 ? " on hosts " : " on host ";
  for (std::size_t i = 0; i < std::min(names.size(), kNamed); ++i) text += (i > 0 ? ", " : "") + names[i];
  return names.size() > kNamed ? text + " and " + std::to_string(names.size() - kNamed) + " more" : text;
}

std::string overdue_message(const Request& request, std::int64_t age_ns, std::span<const int> missing,
                            std::span<const std::string> hosts) {
  constexpr std::int64_t kTenthNs = 100'000'000;
  std::ostringstream text;
  text << "tensor " << title_of(request) << " has waited " << static_cast<double>(age_ns / kTenthNs) / 10 << " s for "
       << ranks_text(missing, hosts) << ", longer than "
       << (request.timeout_ns > 0 && age_ns >= request.timeout_ns ? "its timeout" : "the stall shutdown time")
       << ": the job ends";
  return text.str();
}

}  // namespace ringtune
