#include "base/home_process.h"

#include <pthread.h>

namespace ringtune {

std::atomic<std::uint32_t> HomeProcess::forks_{0};

HomeProcess::HomeProcess() : made_in_(forks_.load(std::memory_order_relaxed)) {
  // Once in a process; children inherit the handler.
  [[maybe_unused]] static const int registered =
      ::pthread_atfork(nullptr, nullptr, [] { forks_.fetch_add(1, std::memory_order_relaxed); });
}

}  // namespace ringtune
