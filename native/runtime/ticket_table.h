// Who waits for what: the operations of this rank by ticket and, while they are in flight, by name.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "control/tensor_key.h"
#include "runtime/operation.h"
#include "runtime/stall_report.h"

namespace ringtune {

/// An allreduce as a caller states it: views, so that a repeated call allocates nothing.
struct AllreduceCall {
  std::string_view name;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::uint32_t process_set = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  std::string_view group;
  std::uint32_t group_size = 0;
  std::span<const std::int64_t> shape;
  const void* input = nullptr;
  void* output = nullptr;
  std::optional<DType> wire = {};
  std::int64_t timeout_ns = 0;
};
[[nodiscard]] bool same(const Request& request, const AllreduceCall& call) noexcept;
[[nodiscard]] Request request_of(const AllreduceCall& call);

/// Where the tensor of an operation is and, of an alltoall, how its rows are split.
struct Memory {
  const void* input = nullptr;
  void* output = nullptr;
  std::span<const std::int64_t> splits = {};
  FinishListener* listener = nullptr;
  std::size_t room = 0;  // Operation::room
};

/// Thread-safe. Callers submit, wait and release; the driving thread takes, finds and finishes. Operations are pooled
/// and requests are kept, so that a repeated operation costs one hash look-up and no allocation.
class TicketTable {
 public:
  TicketTable();

  /// The request last submitted under that name in that process set, or null. A caller that finds its own there may
  /// submit it again.
  [[nodiscard]] std::shared_ptr<const Prepared> known(std::uint32_t process_set, std::string_view name) const;
  /// Registers an operation and queues it for the driving thread. Throws InvalidArgument when its name is in flight,
  /// or the error given to close().
  Ticket submit(std::shared_ptr<const Prepared> prepared, const Memory& memory, std::int64_t now_ns);
  /// The same in one step when `call` repeats the last request of its name; 0 when it does not.
  Ticket submit_again(const AllreduceCall& call, std::int64_t now_ns, std::size_t& bytes);

  /// Keeps what is known of a request at hand until it is dropped.
  [[nodiscard]] PersistentRequest keep(std::shared_ptr<const Prepared> prepared);
  void drop(const PersistentRequest& persistent) noexcept;
  /// As submit(), without a look-up.
  Ticket submit(const PersistentRequest& persistent, const Memory& memory, std::int64_t now_ns);
  /// All or none of them, each with its own address for input and output; their tickets, in the same order.
  void submit(std::span<const PersistentAt> calls, std::int64_t now_ns, std::vector<Ticket>& tickets);
  /// The same for the driving thread, which sees to the operation itself: it is not queued, and when it is done it is
  /// released at once, unless it is handed over to its caller before.
  [[nodiscard]] Operation& begin(const PersistentRequest& persistent, const Memory& memory, std::int64_t now_ns);
  /// `listener`: null unless it is to be called when the operation is done.
  Ticket hand_over(Operation& operation, FinishListener* listener = nullptr) noexcept;
  /// What was submitted since the last call, in order. Valid until the next call. Driving thread.
  [[nodiscard]] std::span<const OperationPtr> take_submitted();
  /// The operation in flight under that name in that process set, or null.
  [[nodiscard]] OperationPtr in_flight(std::uint32_t process_set, std::string_view name) const;
  /// Ends operations; `error` may be null. Wakes who sleeps on one of them.
  void finish(std::span<const OperationPtr> operations, std::exception_ptr error);
  /// Ends everything in flight with `error`; later submits throw it.
  void close(const std::exception_ptr& error);
  /// What RankState says of operations that are not done. Any thread; looks at all names.
  [[nodiscard]] RankState open_state(std::int64_t now_ns) const;
  /// Operations that are not done. Relaxed: a hint.
  [[nodiscard]] std::size_t open() const noexcept { return open_.load(std::memory_order_relaxed); }

  /// Throws InvalidArgument for a ticket that was never given or has been released.
  [[nodiscard]] OperationPtr find(Ticket ticket);
  /// Blocks until the operation is done or the deadline; returns for no reason now and then.
  static void sleep(Operation& operation, Deadline deadline);
  /// Blocks until the operation is done, false at the deadline. Asks nobody for it: what is held back for a caller
  /// (overlap_policy.h) stays so.
  [[nodiscard]] static bool attend(Operation& operation, Deadline deadline);
  void release(Ticket ticket);
  /// release() if the operation is done and has not failed. Throws as find().
  [[nodiscard]] bool release_if_done(Ticket ticket);
  /// The same of all or none: the first that is not done or has failed, if there is one.
  [[nodiscard]] std::optional<Ticket> release_if_done(std::span<const Ticket> tickets);

 private:
  struct KeyView {  // a TensorKey that owns nothing
    std::uint32_t process_set;
    std::string_view name;
  };
  struct Hash {
    using is_transparent = void;  // NOLINT(readability-identifier-naming): the standard library asks for this name
    std::size_t operator()(const TensorKey& key) const noexcept { return hash_of(key.process_set, key.name); }
    std::size_t operator()(const KeyView& key) const noexcept { return hash_of(key.process_set, key.name); }
  };
  struct Equal {
    using is_transparent = void;  // NOLINT(readability-identifier-naming)
    bool operator()(const auto& a, const auto& b) const noexcept {
      return a.process_set == b.process_set && a.name == b.name;
    }
  };

  void check_free(const NameEntry& entry) const;
  [[noreturn]] void throw_closed(const NameEntry& entry) const;
  Operation& enter(NameEntry& entry, const Memory& memory, std::int64_t now_ns);
  Operation& enter(const PersistentRequest& persistent, const Memory& memory, std::int64_t now_ns);
  Ticket queue(Operation& operation);
  [[nodiscard]] Operation& at(Ticket ticket);
  OperationPtr allocate();
  void recycle(Operation& operation);
  [[nodiscard]] bool finish_one(Operation& operation, std::exception_ptr error);
  void forget_unused();

  mutable std::mutex mutex_;
  // Names are per process set: the same one may be in flight in several.
  std::unordered_map<TensorKey, NameEntry, Hash, Equal> entries_;
  std::size_t forget_at_;
  std::deque<Operation> operations_;  // by slot; addresses are stable
  std::vector<std::uint32_t> free_;
  std::vector<OperationPtr> submitted_;
  std::vector<OperationPtr> taken_;     // driving thread only
  std::vector<OperationPtr> awakened_;  // driving thread only
  std::vector<OperationPtr> listened_;  // driving thread only
  std::exception_ptr closed_;
  Ticket generation_ = 1;
  std::atomic<std::size_t> open_{0};
};

}  // namespace ringtune
