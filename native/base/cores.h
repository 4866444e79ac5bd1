// The processor cores that this process may use.
#pragma once

#include <sched.h>

namespace ringtune {

/// 0 when the kernel does not say.
[[nodiscard]] inline int usable_cores() noexcept {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return ::sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 0;
}

}  // namespace ringtune
