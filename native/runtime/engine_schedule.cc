// The rounds of a schedule: posting, waiting for the other ranks, taking part in one that this rank has declined.
#include <algorithm>

#include "base/error.h"
#include "collective/progress.h"
#include "runtime/engine.h"

namespace ringtune {

void Engine::post_round(const RoundAction& action, std::int64_t now_ns) {
  drain();
  round_.clear();
  for (const Tag tag : negotiator_.round_batch()) round_.push_back(reinterpret_cast<OperationPtr>(tag));
  round_id_ = action.batch_id;
  ran(round_id_);
  round_since_ns_ = round_reported_ns_ = now_ns;
  // Relaxed: read by the thread that reports stalls, for which a moment makes no difference.
  round_token_.store(action.token, std::memory_order_relaxed);
  executor_->post_round(round_, round_context(), action.token);
}

/// Whether the posted round is over, having run or not; in shared memory it waits for the other ranks until the
/// deadline.
bool Engine::resume_round(Deadline deadline) {
  const std::optional<bool> agreed = executor_->round_agreed(deadline);
  if (agreed) {
    (void)end_round(*agreed);
  } else {
    watch_round();
  }
  return agreed.has_value();
}

/// Runs the round if all ranks have agreed. When that was done.
std::int64_t Engine::end_round(bool agreed) {
  std::int64_t end_ns = now_ns();
  if (agreed) {
    const BatchContext context = round_context();
    try {
      end_ns = executor_->finish_round(round_, context, end_ns);
      finish(round_, context);
    } catch (const DataPathRefused&) {
      finish_refused(round_);
    }
  }
  negotiator_.round_done(agreed, end_ns);
  return end_ns;
}

/// The coordinator knows nothing of a schedule's rounds: who waits for others in one reports it.
void Engine::watch_round() {
  const std::int64_t moved_ns = executor_->round_moved_ns();
  if (options_.idle_timeout_ns > 0 && moved_ns > 0 && now_ns() - moved_ns >= options_.idle_timeout_ns) {
    throw Timeout(executor_->complaint());
  }
  const StallLimits& stall = options_.negotiator.stall;
  const std::int64_t now = now_ns();
  if (stall.warning_ns > 0 && now - round_reported_ns_ >= stall.warning_ns) {
    round_reported_ns_ = now;
    add(counters_.stalls, std::uint64_t{1});
    stall_reporter_->report(round_stall(now));
  }
  if (now - round_since_ns_ < longest_round_ns()) return;
  const std::vector<int> missing = missing_in_round(now);
  if (!missing.empty()) {
    throw Timeout(
        overdue_message(round_.front()->request(), now - round_since_ns_, missing, options_.negotiator.hosts));
  }
  if (moved_ns > 0 && now - moved_ns >= longest_round_ns()) throw Timeout(executor_->complaint());
}

/// How long the posted round may wait for ranks that do not come.
std::int64_t Engine::longest_round_ns() const noexcept {
  std::int64_t longest_ns = StallLimits::kNever;
  for (const OperationPtr operation : round_) {
    longest_ns = std::min(longest_ns, options_.negotiator.stall.longest_wait_ns(operation->request()));
  }
  return longest_ns;
}

/// When a posted round over links must be looked at though nothing has moved.
Deadline Engine::round_deadline() const noexcept {
  const StallLimits& stall = options_.negotiator.stall;
  Deadline deadline = Deadline::never();
  if (stall.warning_ns > 0) deadline = Deadline::at(round_reported_ns_ + stall.warning_ns);
  const std::int64_t moved_ns = executor_->round_moved_ns();
  if (const std::int64_t longest_ns = longest_round_ns(); longest_ns != StallLimits::kNever) {
    deadline = earlier(deadline, Deadline::at(std::max(round_since_ns_, moved_ns) + longest_ns));
  }
  if (options_.idle_timeout_ns > 0 && moved_ns > 0) {
    deadline = earlier(deadline, Deadline::at(moved_ns + options_.idle_timeout_ns));
  }
  return deadline;
}

/// Ends the part of this rank in a round that it has declined, before anything else goes over the links. Blocks, but
/// not for long: all ranks of the round have left the schedule or are in that round by now.
void Engine::drain() {
  if (executor_->drained()) return;
  advance_until(
      fabric_.waker(), options_.idle_timeout_ns, [&] { return executor_->drained(); },
      [&] {
        if (control_) control_->flush();  // the end of the schedule may still be on its way to those who wait in it
        return executor_->advance_declined();
      },
      [&] { throw Timeout(executor_->complaint()); });
}

}  // namespace ringtune
