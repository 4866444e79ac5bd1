#include "runtime/ticket_table.h"

#include <utility>

#include "base/error.h"
#include "base/futex.h"

namespace ringtune {

Ticket TicketTable::submit(OperationPtr operation) {
  const std::lock_guard lock(mutex_);
  if (closed_) std::rethrow_exception(closed_);
  const std::string& name = operation->request.name;
  if (!in_flight_.emplace(name, operation).second) {
    throw InvalidArgument("Duplicate tensor name '" + name +
                          "': an operation of this name is still in flight on this rank. Wait for it "
                          "(synchronize), or give the operations different names.");
  }
  operation->ticket = next_ticket_++;
  by_ticket_.emplace(operation->ticket, operation);
  submitted_.push_back(std::move(operation));
  return next_ticket_ - 1;
}

std::vector<OperationPtr> TicketTable::take_submitted() {
  const std::lock_guard lock(mutex_);
  return std::exchange(submitted_, {});
}

OperationPtr TicketTable::in_flight(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto it = in_flight_.find(name);
  return it == in_flight_.end() ? nullptr : it->second;
}

void TicketTable::finish(const OperationPtr& operation, std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    in_flight_.erase(operation->request.name);
    operation->error = std::move(error);
    // Release: whoever sees `done` sees the result and the error as well.
    operation->done.store(true, std::memory_order_release);
  }
  // Sequentially consistent on both sides: either the sleeper sees the new count, or we see the sleeper.
  finished_.fetch_add(1);
  if (sleepers_.load() > 0) futex_wake(finished_, kFutexWakeAll, FutexScope::kPrivate);
}

void TicketTable::close(std::exception_ptr error) {
  std::vector<OperationPtr> doomed;
  {
    const std::lock_guard lock(mutex_);
    if (!closed_) closed_ = error;
    for (const auto& [name, operation] : in_flight_) doomed.push_back(operation);
    submitted_.clear();
  }
  for (const OperationPtr& operation : doomed) finish(operation, error);
}

OperationPtr TicketTable::find(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  const auto it = by_ticket_.find(ticket);
  if (it == by_ticket_.end()) {
    throw InvalidArgument("Ticket " + std::to_string(ticket) + " was not created or has been cleared.");
  }
  return it->second;
}

bool TicketTable::wait(const Operation& operation, Deadline deadline) {
  sleepers_.fetch_add(1);
  bool done = false;
  while (true) {
    const std::uint32_t seen = finished_.load();
    done = operation.done.load(std::memory_order_acquire);
    if (done || deadline.expired()) break;
    futex_wait(finished_, seen, deadline, FutexScope::kPrivate);
  }
  sleepers_.fetch_sub(1);
  return done;
}

void TicketTable::release(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  by_ticket_.erase(ticket);
}

}  // namespace ringtune
