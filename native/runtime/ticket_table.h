// Who waits for what: the operations of this rank by ticket and, while they are in flight, by name.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "runtime/operation.h"

namespace ringtune {

/// Thread-safe. Callers submit, wait and release; the cycle thread takes, finds and finishes.
class TicketTable {
 public:
  /// Registers the operation and queues it for the cycle thread. Throws InvalidArgument when its name is in flight, or
  /// the error given to close().
  Ticket submit(OperationPtr operation);
  /// What was submitted since the last call, in order.
  [[nodiscard]] std::vector<OperationPtr> take_submitted();
  /// The operation in flight under that name, or null.
  [[nodiscard]] OperationPtr in_flight(const std::string& name);
  /// Ends an operation; `error` may be null. Wakes its waiters.
  void finish(const OperationPtr& operation, std::exception_ptr error);
  /// Ends everything in flight with `error`; later submits throw it.
  void close(std::exception_ptr error);

  /// Throws InvalidArgument for a ticket that was never given or has been released.
  [[nodiscard]] OperationPtr find(Ticket ticket);
  /// Blocks until the operation is done; false at the deadline. Does not rethrow its error.
  [[nodiscard]] bool wait(const Operation& operation, Deadline deadline);
  void release(Ticket ticket);

 private:
  std::mutex mutex_;
  std::unordered_map<Ticket, OperationPtr> by_ticket_;
  std::unordered_map<std::string, OperationPtr> in_flight_;
  std::vector<OperationPtr> submitted_;
  std::exception_ptr closed_;
  Ticket next_ticket_ = 1;
  std::atomic<std::uint32_t> finished_{0};  // futex word: counts finished operations
  std::atomic<std::uint32_t> sleepers_{0};
};

}  // namespace ringtune
