#include "runtime/wait_queries.h"

#include <utility>

#include "base/futex.h"

namespace ringtune {

std::uint32_t WaitQueries::ask(const Request& request, Deadline known) {
  while (!known.expired())
    futex_wait(answers_given_, answers_given_.load(std::memory_order_acquire), known, FutexScope::kPrivate);
  const std::lock_guard lock(mutex_);
  const std::uint32_t number = ++last_;
  questions_.push_back({rank_, number, request.name, request.process_set, false, {}});
  answers_.try_emplace(number);
  asked_.store(true, std::memory_order_release);
  return number;
}

std::vector<int> WaitQueries::answer_to(std::uint32_t number, Deadline deadline) {
  while (true) {
    const std::uint32_t seen = answers_given_.load(std::memory_order_acquire);
    {
      const std::lock_guard lock(mutex_);
      const auto found = answers_.find(number);
      if (found->second.known || deadline.expired()) {
        std::vector<int> missing = std::move(found->second.missing);
        answers_.erase(found);
        return missing;
      }
    }
    futex_wait(answers_given_, seen, deadline, FutexScope::kPrivate);
  }
}

std::vector<WaitQuery> WaitQueries::take() {
  if (!asked_.exchange(false, std::memory_order_acquire)) return {};
  const std::lock_guard lock(mutex_);
  return std::exchange(questions_, {});
}

void WaitQueries::note_seen(std::uint32_t number, std::vector<int> missing) {
  const std::lock_guard lock(mutex_);
  const auto found = answers_.find(number);
  if (found != answers_.end() && !found->second.known) found->second.missing = std::move(missing);
}

void WaitQueries::answered(std::uint32_t number, std::vector<int> missing) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = answers_.find(number);
    if (found == answers_.end()) return;  // no caller waits for it any more
    found->second = {true, std::move(missing)};
  }
  answers_given_.fetch_add(1, std::memory_order_release);
  futex_wake(answers_given_, kFutexWakeAll, FutexScope::kPrivate);
}

}  // namespace ringtune
