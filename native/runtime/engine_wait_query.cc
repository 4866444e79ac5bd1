// Wait queries: a caller asks which ranks an operation waits for; the round of a schedule or rank 0 answers.
#include <algorithm>
#include <limits>

#include "base/futex.h"
#include "control/aggregator.h"
#include "control/tree.h"
#include "runtime/engine.h"

namespace ringtune {

std::vector<int> Engine::awaited(const Request& request, Deadline deadline) {
  // Ranks in the middle of the tree hold back requests that only some ranks below have sent. Rank 0 knows the requests
  // sent by now once each level's hold time is over.
  const int levels = tree_levels(fabric_.size(), options_.negotiator.fan_out);
  const Deadline known = earlier(Deadline::after(levels * Aggregator::kHoldNs), deadline);
  while (!known.expired())
    futex_wait(answer_count_, answer_count_.load(std::memory_order_acquire), known, FutexScope::kPrivate);
  std::uint32_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    number = ++last_question_;
    questions_.push_back({fabric_.rank(), number, request.name, request.process_set, false, {}});
    answers_.try_emplace(number);
    asks_.store(true, std::memory_order_release);
  }
  nudge();
  while (true) {
    const std::uint32_t seen = answer_count_.load(std::memory_order_acquire);
    {
      const std::lock_guard lock(mutex_);
      const auto found = answers_.find(number);
      if (found->second.known || deadline.expired()) {
        std::vector<int> missing = std::move(found->second.missing);
        answers_.erase(found);
        return missing;
      }
    }
    futex_wait(answer_count_, seen, deadline, FutexScope::kPrivate);
  }
}

/// Answers the queries that this rank can answer itself; the others go to rank 0.
void Engine::answer_questions() {
  std::vector<WaitQuery> questions;
  {
    const std::lock_guard lock(mutex_);
    questions.swap(questions_);
  }
  for (WaitQuery& query : questions) {
    const bool in_round =
        negotiator_.round_posted() && std::any_of(round_.begin(), round_.end(), [&](OperationPtr one) {
          return one->request().name == query.name && one->request().process_set == query.process_set;
        });
    if (in_round && executor_->round_on_links()) {  // this rank sees only whose messages have reached it
      note_seen(query.number, executor_->absent_in_round(schedule_communicator()));
      stall_reporter_->find_missing(round_stall(now_ns()), [this, number = query.number](std::vector<int> missing) {
        answered(number, std::move(missing));
      });
    } else if (in_round) {
      answered(query.number, executor_->absent_in_round(schedule_communicator()));
    } else if (fabric_.rank() == 0) {
      answered(query.number, negotiator_.awaited({query.process_set, query.name}).ranks());
    } else {
      control_->send(control_->parent(), encode(query));
    }
  }
}

void Engine::handle(WaitQuery query, int from) {
  if (fabric_.rank() != 0) return answered(query.number, query.missing.ranks());
  query.missing = negotiator_.awaited({query.process_set, query.name});
  query.answered = true;
  control_->send(from, encode(query));
}

/// What is known in case that nobody answers.
void Engine::note_seen(std::uint32_t number, std::vector<int> missing) {
  const std::lock_guard lock(mutex_);
  const auto found = answers_.find(number);
  if (found != answers_.end() && !found->second.known) found->second.missing = std::move(missing);
}

void Engine::answered(std::uint32_t number, std::vector<int> missing) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = answers_.find(number);
    if (found == answers_.end()) return;  // no caller waits for it any more
    found->second = {true, std::move(missing)};
  }
  answer_count_.fetch_add(1, std::memory_order_release);
  futex_wake(answer_count_, std::numeric_limits<int>::max(), FutexScope::kPrivate);
}

}  // namespace ringtune
