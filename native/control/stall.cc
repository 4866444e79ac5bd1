#include "control/stall.h"

#include <sstream>

namespace ringtune {

std::int64_t StallLimits::due_ns(const Request& request, std::int64_t since_ns, std::int64_t warned_ns) const noexcept {
  const std::int64_t limit_ns = longest_wait_ns(request);
  return std::min(warning_ns > 0 ? warned_ns + warning_ns : kNever, limit_ns != kNever ? since_ns + limit_ns : kNever);
}

std::string overdue_message(const Request& request, std::int64_t age_ns, std::span<const int> missing) {
  constexpr std::int64_t kTenthNs = 100'000'000;
  std::ostringstream text;
  text << "tensor '" << request.name << "' has waited " << static_cast<double>(age_ns / kTenthNs) / 10 << " s for rank"
       << (missing.size() > 1 ? "s " : " ") << rank_list(missing) << ", longer than "
       << (request.timeout_ns > 0 && age_ns >= request.timeout_ns ? "its timeout" : "the stall shutdown time")
       << ": the job ends";
  return text.str();
}

}  // namespace ringtune
