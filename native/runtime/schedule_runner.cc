#include "runtime/schedule_runner.h"

#include <algorithm>

#include "base/error.h"
#include "collective/progress.h"

namespace ringtune {

ScheduleRunner::ScheduleRunner(const ScheduleParts& parts, const ScheduleLimits& limits)
    : parts_(parts), limits_(limits), hosts_(parts.fabric.hosts()), links_(parts.executor.host().links()) {}

Communicator& ScheduleRunner::communicator() const {
  return parts_.sets.communicator(parts_.negotiator.schedule_set());
}

BatchContext ScheduleRunner::context() const {
  return {communicator(),
          id_,
          parts_.status.knobs_version(),
          parts_.status.step(),
          parts_.negotiator.round_rows(),
          parts_.negotiator.schedule_set(),
          true};
}

void ScheduleRunner::begin(const BeginScheduleAction& schedule) {
  drain();
  // In the schedule's order: nobody waits for a rank that waits for it in another set.
  for (const std::vector<SharedRequest>& batch : schedule.batches) {
    Communicator& communicator = parts_.sets.communicator(batch.front()->process_set);
    parts_.executor.host().of(communicator).prepare(batch, communicator);
  }
}

void ScheduleRunner::post(const RoundAction& round, std::int64_t now_ns) {
  drain();
  batch_.clear();
  for (const Tag tag : parts_.negotiator.round_batch()) batch_.push_back(reinterpret_cast<OperationPtr>(tag));
  id_ = round.batch_id;
  parts_.status.ran(id_);
  since_ns_ = reported_ns_ = now_ns;
  token_.store(round.token, std::memory_order_relaxed);
  const BatchContext context = this->context();
  votes_ = &parts_.executor.host().of(context.communicator);
  path_ = &parts_.executor.path_of(batch_.front()->request(), *votes_);
  path_->post(batch_, context, round.token);
}

bool ScheduleRunner::resume(Deadline deadline) {
  const std::optional<bool> agreed = path_->agreed(deadline);
  if (agreed) {
    (void)end(*agreed);
  } else {
    watch();
  }
  return agreed.has_value();
}

std::optional<bool> ScheduleRunner::agreed(Deadline deadline) { return path_->agreed(deadline); }

std::int64_t ScheduleRunner::end(bool agreed) {
  std::int64_t end_ns = now_ns();
  if (agreed) {
    const BatchContext context = this->context();
    try {
      end_ns = path_->finish(batch_, context, end_ns);
      parts_.completions.finish(batch_, context);
    } catch (const DataPathRefused&) {
      parts_.completions.refused(batch_);
    }
  }
  parts_.negotiator.round_done(agreed, end_ns);
  return end_ns;
}

void ScheduleRunner::decline(const DeclineAction& round) {
  const Request& first = *round.batch.front();
  Communicator& communicator = parts_.sets.communicator(first.process_set);
  parts_.executor.path_of(first, parts_.executor.host().of(communicator)).decline(round, communicator);
}

void ScheduleRunner::drain() {
  if (drained()) return;
  advance_until(
      parts_.fabric.waker(), limits_.idle_timeout_ns, [&] { return drained(); },
      [&] {
        // The end of the schedule may still be on its way to those who wait in it.
        if (parts_.control != nullptr) parts_.control->flush();
        return advance_declined();
      },
      [&] { throw Timeout(links_.complaint()); });
}

/// The coordinator knows nothing of a schedule's rounds: who waits for others in one reports it.
void ScheduleRunner::watch() {
  const std::int64_t moved_ns = links_.moved_ns();
  if (limits_.idle_timeout_ns > 0 && moved_ns > 0 && now_ns() - moved_ns >= limits_.idle_timeout_ns) {
    throw Timeout(links_.complaint());
  }
  const std::int64_t now = now_ns();
  if (limits_.stall.warning_ns > 0 && now - reported_ns_ >= limits_.stall.warning_ns) {
    reported_ns_ = now;
    add(parts_.counters.stalls, std::uint64_t{1});
    parts_.stall_reporter.report(stall());
  }
  if (now - since_ns_ < longest_ns()) return;
  const std::vector<int> missing = this->missing();
  if (!missing.empty()) {
    throw Timeout(overdue_message(batch_.front()->request(), now - since_ns_, missing, hosts_));
  }
  if (moved_ns > 0 && now - moved_ns >= longest_ns()) throw Timeout(links_.complaint());
}

/// How long the posted round may wait for ranks that do not come.
std::int64_t ScheduleRunner::longest_ns() const noexcept {
  std::int64_t longest_ns = StallLimits::kNever;
  for (const OperationPtr operation : batch_) {
    longest_ns = std::min(longest_ns, limits_.stall.longest_wait_ns(operation->request()));
  }
  return longest_ns;
}

Deadline ScheduleRunner::deadline() const noexcept {
  Deadline deadline = Deadline::never();
  if (limits_.stall.warning_ns > 0) deadline = Deadline::at(reported_ns_ + limits_.stall.warning_ns);
  const std::int64_t moved_ns = links_.moved_ns();
  if (const std::int64_t longest_ns = this->longest_ns(); longest_ns != StallLimits::kNever) {
    deadline = earlier(deadline, Deadline::at(std::max(since_ns_, moved_ns) + longest_ns));
  }
  if (limits_.idle_timeout_ns > 0 && moved_ns > 0) {
    deadline = earlier(deadline, Deadline::at(moved_ns + limits_.idle_timeout_ns));
  }
  return deadline;
}

std::optional<std::uint64_t> ScheduleRunner::pass() const noexcept {
  if (!parts_.negotiator.in_schedule()) return std::nullopt;
  return parts_.negotiator.schedule_pass();
}

bool ScheduleRunner::holds(const WaitQuery& query) const {
  return posted() && std::any_of(batch_.begin(), batch_.end(), [&](OperationPtr one) {
           return one->request().name == query.name && one->request().process_set == query.process_set;
         });
}

Stall ScheduleRunner::stall() const {
  const std::int64_t now = now_ns();
  Stall stall;
  stall.round = token();
  const std::vector<int>& members = communicator().members();
  stall.members.assign(members.begin(), members.end());
  const std::vector<int> absent = this->absent();
  for (const OperationPtr operation : batch_) {
    const Request& request = operation->request();
    stall.tensors.push_back({title_of(request), request.name, now - since_ns_, absent});
  }
  return stall;
}

/// In shared memory this rank sees who has come; over links only whose messages have reached it, so it asks.
std::vector<int> ScheduleRunner::missing() {
  if (!on_links()) return absent();
  constexpr std::int64_t kAgainNs = 1'000'000'000;
  if (now_ns() - asked_ns_ < kAgainNs) return {};
  std::vector<int> missing = parts_.stall_reporter.who_is_missing(stall());
  asked_ns_ = now_ns();
  return missing;
}

}  // namespace ringtune
