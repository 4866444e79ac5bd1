#include "runtime/mailbox.h"

#include <chrono>
#include <utility>

namespace ringtune {

std::uint32_t Mailbox::propose(const Knobs& knobs) {
  const std::lock_guard lock(mutex_);
  waiting_.proposals.push_back(knobs);
  mail_.store(true, std::memory_order_release);
  return ++proposed_version_;
}

void Mailbox::report(const StepReport& report) {
  const std::lock_guard lock(mutex_);
  waiting_.reports.push_back(report);
  mail_.store(true, std::memory_order_release);
}

std::uint32_t Mailbox::request_look() {
  const std::lock_guard lock(mutex_);
  mail_.store(true, std::memory_order_release);
  return ++waiting_.looks;
}

std::optional<Mailbox::Mail> Mailbox::take() {
  if (!mail_.exchange(false, std::memory_order_acquire)) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return std::exchange(waiting_, Mail{.looks = waiting_.looks});
}

void Mailbox::leave(Departure departure, Deadline deadline) {
  {
    const std::lock_guard lock(mutex_);
    departure_ = std::move(departure);
  }
  leave_deadline_ns_.store(deadline.when_ns(), std::memory_order_relaxed);
  leave_requested_.store(true, std::memory_order_release);
}

Departure Mailbox::departure() const {
  const std::lock_guard lock(mutex_);
  return departure_;
}

void Mailbox::lose(std::exception_ptr error, bool known) {
  {
    const std::lock_guard lock(mutex_);
    if (!loss_) loss_ = {.error = std::move(error), .known = known};
  }
  lost_.notify_all();
}

std::optional<Mailbox::Loss> Mailbox::loss(std::int64_t wait_ns) {
  std::unique_lock lock(mutex_);
  lost_.wait_for(lock, std::chrono::nanoseconds(wait_ns), [this] { return loss_.has_value(); });
  return loss_;
}

}  // namespace ringtune
