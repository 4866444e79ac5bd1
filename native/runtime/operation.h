// One collective that a caller has submitted, from submit to the moment its ticket is released.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "base/result_memory.h"
#include "control/request.h"
#include "trace/tracer.h"

namespace ringtune {

using Ticket = std::uint64_t;

/// An operation that was to go from GPU to GPU has not run, on any rank, and must be submitted again.
class DataPathRefused : public Error {
 public:
  /// Its process set does not take that data path from now on.
  DataPathRefused(const std::string& message, DataPath refused) : Error(message), refused_(refused) {}
  /// This one is to be staged.
  explicit DataPathRefused(const std::string& message) : Error(message) {}
  [[nodiscard]] std::optional<DataPath> refused() const noexcept { return refused_; }

 private:
  std::optional<DataPath> refused_;
};

/// What is known of a request before it is submitted again. Immutable but for the cached number of its name.
struct Prepared {
  explicit Prepared(Request given)
      : request(std::move(given)),
        count(element_count(request)),
        bytes(byte_count(request)),
        wire_bytes(wire_byte_count(request)) {}
  Request request;
  std::size_t count;
  std::size_t bytes;                                 // of the tensor in memory
  std::size_t wire_bytes;                            // of the tensor as it travels
  mutable std::atomic<std::uint32_t> trace_name{0};  // Tracer::intern(request.name), 0 = not asked for yet
};

[[nodiscard]] inline std::uint32_t trace_name(Tracer& tracer, const Prepared& prepared) {
  // Relaxed: a thread that finds no number asks the tracer, which gives all threads the same.
  std::uint32_t id = prepared.trace_name.load(std::memory_order_relaxed);
  if (id == 0 || id < tracer.oldest_name()) {
    prepared.trace_name.store(id = tracer.intern(prepared.request.name), std::memory_order_relaxed);
  }
  return id;
}

struct Operation;

/// Told when an operation is done, by the thread that has ended it, which must not wait. Until it is released the
/// operation stays as it is.
class FinishListener {
 public:
  virtual void finished(Operation& operation) noexcept = 0;

 protected:
  ~FinishListener() = default;
};

/// A name under which operations are submitted: its last request, and the operation in flight.
struct NameEntry {
  std::shared_ptr<const Prepared> prepared;
  Operation* operation = nullptr;
  std::uint32_t keepers = 0;  // how many hold a pointer to this entry
};

/// A request that its caller submits again and again. The table's, which must outlive it (TicketTable::keep).
struct PersistentRequest {
  std::shared_ptr<const Prepared> prepared;
  NameEntry* entry = nullptr;
};

struct PersistentAt {
  const PersistentRequest* persistent;
  void* address;  // of input and output
};

/// Addresses are borrowed: the caller keeps the memory alive until the operation is done. Operations are pooled: one
/// that is released is used again under another ticket, and its memory lives as long as the runtime.
struct Operation {
  static constexpr std::uint32_t kPending = 0;
  static constexpr std::uint32_t kAwaited = 1;  // pending, and somebody sleeps on `state`
  static constexpr std::uint32_t kDone = 2;

  [[nodiscard]] const Request& request() const noexcept { return prepared->request; }
  // Acquire: a thread that sees `done` sees the result and the error as well.
  [[nodiscard]] bool done() const noexcept { return state.load(std::memory_order_acquire) == kDone; }
  /// Memory for what is gathered: the caller's if that is as large, else of our own.
  [[nodiscard]] std::span<std::byte> place_gathered(std::size_t bytes) {
    if (output != nullptr && room == bytes) return {output, bytes};
    gathered = ResultMemory(bytes);
    return gathered;
  }

  std::shared_ptr<const Prepared> prepared;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;  // allreduce, broadcast: as large as the input; may be the input; reducescatter: own
                                // rows; gathers: `room`
  std::size_t room = 0;  // allgather, alltoall: bytes at `output` for a result of just that size; others are `gathered`
  std::vector<std::int64_t> splits;  // alltoall: rows for each member, empty = equal shares; then rows from each
  std::int64_t submitted_ns = 0;
  std::int64_t agreed_ns = 0;          // by the driving thread only
  Ticket ticket = 0;                   // guarded by the table; 0 = in the pool
  std::uint32_t slot = 0;              // where the table holds it
  NameEntry* entry = nullptr;          // the table's, while in flight
  FinishListener* listener = nullptr;  // borrowed
  bool abandoned = false;              // guarded by the table: released before it was done

  // Written by the driving thread before `state` becomes kDone, read by callers after they saw it.
  std::exception_ptr error;
  ResultMemory gathered;  // allgather, alltoall: the result, unless it is at `output`
  std::vector<std::int64_t> gathered_shape;
  std::int64_t number = 0;                     // add_process_set: the set's; join: who came last
  std::atomic<std::uint32_t> state{kPending};  // futex word
};

using OperationPtr = Operation*;

}  // namespace ringtune
