// How operations end: their tickets, and what the timeline holds of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "control/actions.h"
#include "runtime/batch_path.h"
#include "runtime/operation.h"
#include "runtime/ticket_table.h"
#include "trace/tracer.h"

namespace ringtune {

/// Borrows the tickets and the tracer. The driving thread.
class Completions {
 public:
  Completions(TicketTable& tickets, Tracer& tracer) noexcept : tickets_(tickets), tracer_(tracer) {}

  /// From here on it is in flight, until one of the others ends it.
  void taken(const Operation& operation) noexcept { in_flight_bytes_ += operation.prepared->bytes; }
  /// The batch has run: wakes the threads that wait for these operations.
  void finish(std::span<const OperationPtr> batch, const BatchContext& context);
  /// Of a batch that has not run and whose operations will come again. In a handler of what refused it.
  void refused(std::span<const OperationPtr> batch);
  /// Of an operation that is a decision about the job: `number` is its result.
  void decided(const std::string& name, std::int64_t number);
  void failed(const FailAction& action);

 private:
  TicketTable& tickets_;
  Tracer& tracer_;
  std::size_t in_flight_bytes_ = 0;  // of operations that were taken and are not done
};

}  // namespace ringtune
