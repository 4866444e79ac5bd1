#include "runtime/ticket_table.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/futex.h"

namespace ringtune {
namespace {

// A ticket is the slot of its operation and, above it, a number that is never used twice.
constexpr unsigned kSlotBits = 24;
constexpr std::size_t kNamesKept = 1 << 12;  // unnamed operations are numbered: names of long runs must not pile up

constexpr std::uint32_t slot_of(Ticket ticket) noexcept {
  return static_cast<std::uint32_t>(ticket & ((Ticket{1} << kSlotBits) - 1));
}

/// The error of a lost peer, or of one that does not come, names the operation that it ends, beside rank, host and
/// reason.
std::exception_ptr named(const std::exception_ptr& error, const std::string& operation) {
  if (error == nullptr) return error;
  const auto naming = [&](const std::string& message) {
    return message.find(operation) != std::string::npos ? message : message + " (during " + operation + ")";
  };
  try {
    std::rethrow_exception(error);
  } catch (const PeerLost& lost) {
    return std::make_exception_ptr(PeerLost(lost.rank(), naming(lost.what())));
  } catch (const Timeout& timeout) {
    return std::make_exception_ptr(Timeout(naming(timeout.what())));
  } catch (...) {
    return error;
  }
}

}  // namespace

bool same(const Request& request, const AllreduceCall& call) noexcept {
  return request.kind == CollectiveKind::kAllreduce && request.dtype == call.dtype && request.op == call.op &&
         request.process_set == call.process_set && request.prescale == call.prescale &&
         request.postscale == call.postscale && request.group_size == call.group_size && request.group == call.group &&
         request.wire == call.wire && request.place == 0 && request.contribution == Contribution::kDense &&
         request.timeout_ns == call.timeout_ns &&
         std::equal(request.shape.begin(), request.shape.end(), call.shape.begin(), call.shape.end());
}

Request request_of(const AllreduceCall& call) {
  Request request;
  request.name = call.name;
  request.dtype = call.dtype;
  request.op = call.op;
  request.process_set = call.process_set;
  request.prescale = call.prescale;
  request.postscale = call.postscale;
  request.group = call.group;
  request.group_size = call.group_size;
  request.shape.assign(call.shape.begin(), call.shape.end());
  request.wire = call.wire;
  request.timeout_ns = call.timeout_ns;
  return request;
}

TicketTable::TicketTable() : forget_at_(kNamesKept) {}

std::shared_ptr<const Prepared> TicketTable::known(std::uint32_t process_set, std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto it = entries_.find(KeyView{process_set, name});
  return it == entries_.end() ? nullptr : it->second.prepared;
}

Ticket TicketTable::submit(std::shared_ptr<const Prepared> prepared, const Memory& memory, std::int64_t now_ns) {
  const std::lock_guard lock(mutex_);
  if (entries_.size() >= forget_at_) forget_unused();
  NameEntry& entry = entries_[key_of(prepared->request)];
  // The new request counts from the moment it is accepted: a refused one must not displace the one in flight.
  if (entry.operation == nullptr && !closed_) entry.prepared = std::move(prepared);
  return queue(enter(entry, memory, now_ns));
}

Ticket TicketTable::submit_again(const AllreduceCall& call, std::int64_t now_ns, std::size_t& bytes) {
  const std::lock_guard lock(mutex_);
  const auto it = entries_.find(KeyView{call.process_set, call.name});
  if (it == entries_.end() || it->second.prepared == nullptr || !same(it->second.prepared->request, call)) return 0;
  bytes = it->second.prepared->wire_bytes;
  return queue(enter(it->second, {call.input, call.output}, now_ns));
}

PersistentRequest TicketTable::keep(std::shared_ptr<const Prepared> prepared) {
  const std::lock_guard lock(mutex_);
  NameEntry& entry = entries_[key_of(prepared->request)];
  ++entry.keepers;
  return {std::move(prepared), &entry};
}

void TicketTable::drop(const PersistentRequest& persistent) noexcept {
  const std::lock_guard lock(mutex_);
  --persistent.entry->keepers;
}

Ticket TicketTable::submit(const PersistentRequest& persistent, const Memory& memory, std::int64_t now_ns) {
  const std::lock_guard lock(mutex_);
  return queue(enter(persistent, memory, now_ns));
}

void TicketTable::submit(std::span<const PersistentAt> calls, std::int64_t now_ns, std::vector<Ticket>& tickets) {
  tickets.clear();
  const std::lock_guard lock(mutex_);
  for (const PersistentAt& call : calls) check_free(*call.persistent->entry);
  for (const auto& [persistent, address] : calls)
    tickets.push_back(queue(enter(*persistent, {address, address}, now_ns)));
}

Operation& TicketTable::begin(const PersistentRequest& persistent, const Memory& memory, std::int64_t now_ns) {
  const std::lock_guard lock(mutex_);
  Operation& operation = enter(persistent, memory, now_ns);
  operation.abandoned = true;
  operation.listener = nullptr;  // its caller sees for itself how it ends, unless it is handed over
  return operation;
}

Ticket TicketTable::hand_over(Operation& operation, FinishListener* listener) noexcept {
  const std::lock_guard lock(mutex_);
  operation.listener = listener;
  operation.abandoned = false;
  return operation.ticket;
}

Operation& TicketTable::enter(const PersistentRequest& persistent, const Memory& memory, std::int64_t now_ns) {
  NameEntry& entry = *persistent.entry;
  if (entry.prepared != persistent.prepared && entry.operation == nullptr && !closed_)
    entry.prepared = persistent.prepared;
  return enter(entry, memory, now_ns);
}

Ticket TicketTable::queue(Operation& operation) {
  submitted_.push_back(&operation);
  return operation.ticket;
}

void TicketTable::check_free(const NameEntry& entry) const {
  if (closed_) throw_closed(entry);
  if (entry.operation != nullptr) {
    throw InvalidArgument("Duplicate tensor name '" + entry.prepared->request.name +
                          "': an operation of this name is still in flight on this rank. Wait for it "
                          "(synchronize), or give the operations different names.");
  }
}

Operation& TicketTable::enter(NameEntry& entry, const Memory& memory, std::int64_t now_ns) {
  check_free(entry);
  Operation& operation = *allocate();
  operation.prepared = entry.prepared;
  operation.input = static_cast<const std::byte*>(memory.input);
  operation.output = static_cast<std::byte*>(memory.output);
  operation.room = memory.room;
  operation.splits.assign(memory.splits.begin(), memory.splits.end());
  operation.listener = memory.listener;
  operation.submitted_ns = now_ns;
  operation.ticket = (generation_++ << kSlotBits) | operation.slot;
  // Relaxed: the driving thread takes the operation under the same lock.
  operation.state.store(Operation::kPending, std::memory_order_relaxed);
  entry.operation = &operation;
  operation.entry = &entry;
  open_.fetch_add(1, std::memory_order_relaxed);
  return operation;
}

OperationPtr TicketTable::allocate() {
  if (!free_.empty()) {
    const std::uint32_t slot = free_.back();
    free_.pop_back();
    return &operations_[slot];
  }
  if (operations_.size() >= (std::size_t{1} << kSlotBits)) {
    throw InvalidArgument("more than 16 million operations wait to be synchronized");
  }
  Operation& operation = operations_.emplace_back();
  operation.slot = static_cast<std::uint32_t>(operations_.size() - 1);
  return &operation;
}

void TicketTable::recycle(Operation& operation) {
  operation.ticket = 0;
  operation.abandoned = false;
  operation.error = nullptr;
  if (!operation.gathered.empty()) operation.gathered = {};
  free_.push_back(operation.slot);
}

void TicketTable::forget_unused() {
  // Used elsewhere (an operation that is not released, the response cache, a schedule): still alive.
  std::erase_if(entries_, [](const auto& item) {
    const NameEntry& entry = item.second;
    return entry.operation == nullptr && entry.keepers == 0 && entry.prepared.use_count() <= 1;
  });
  forget_at_ = kNamesKept + entries_.size();
}

std::span<const OperationPtr> TicketTable::take_submitted() {
  taken_.clear();
  const std::lock_guard lock(mutex_);
  taken_.swap(submitted_);
  return taken_;
}

OperationPtr TicketTable::in_flight(std::uint32_t process_set, std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto it = entries_.find(KeyView{process_set, name});
  return it == entries_.end() ? nullptr : it->second.operation;
}

bool TicketTable::finish_one(Operation& operation, std::exception_ptr error) {
  operation.entry->operation = nullptr;
  operation.entry = nullptr;
  operation.error = std::move(error);
  // Release: a thread that sees kDone sees the result and the error as well.
  const bool awaited = operation.state.exchange(Operation::kDone, std::memory_order_acq_rel) == Operation::kAwaited;
  if (operation.abandoned) recycle(operation);
  return awaited;
}

void TicketTable::finish(std::span<const OperationPtr> operations, std::exception_ptr error) {
  awakened_.clear();
  listened_.clear();
  {
    const std::lock_guard lock(mutex_);
    for (const OperationPtr operation : operations) {
      if (operation->listener != nullptr) listened_.push_back(operation);
      // The last one gets it: who reads an error is not to find that this thread destroys it meanwhile.
      if (finish_one(*operation, operation == operations.back() ? std::exchange(error, nullptr) : error)) {
        awakened_.push_back(operation);
      }
    }
    open_.fetch_sub(operations.size(), std::memory_order_relaxed);
  }
  // Operations are never freed: one that was released and is used again meanwhile wakes its sleepers once for nothing.
  for (const OperationPtr operation : awakened_) futex_wake(operation->state, kFutexWakeAll, FutexScope::kPrivate);
  for (const OperationPtr operation : listened_) operation->listener->finished(*operation);
}

RankState TicketTable::open_state(std::int64_t now_ns) const {
  constexpr std::size_t kNamed = 3;
  std::vector<const Operation*> open;
  RankState state;
  const std::lock_guard lock(mutex_);
  for (const auto& [key, entry] : entries_) {
    if (entry.operation == nullptr) continue;
    open.push_back(entry.operation);
    state.open_digest ^= hash_of(key.process_set, key.name) ^ entry.operation->ticket * 0x9e3779b97f4a7c15u;
  }
  state.open = static_cast<std::uint32_t>(open.size());
  const std::size_t named = std::min(open.size(), kNamed);
  std::partial_sort(open.begin(), open.begin() + static_cast<std::ptrdiff_t>(named), open.end(),
                    [](const Operation* a, const Operation* b) { return a->submitted_ns < b->submitted_ns; });
  for (const Operation* operation : std::span(open).first(named)) {
    state.oldest.push_back({title_of(operation->request()), now_ns - operation->submitted_ns});
  }
  return state;
}

/// Searches for the name: this ends the job, and no operation pays for it.
void TicketTable::throw_closed(const NameEntry& entry) const {
  for (const auto& [key, known] : entries_) {
    if (&known != &entry) continue;
    const bool fresh = known.prepared == nullptr;
    std::rethrow_exception(named(closed_, fresh ? "'" + key.name + "'" : title_of(known.prepared->request)));
  }
  std::rethrow_exception(closed_);
}

void TicketTable::close(const std::exception_ptr& error) {
  std::vector<OperationPtr> doomed;
  {
    const std::lock_guard lock(mutex_);
    if (!closed_) closed_ = error;
    for (const auto& [key, entry] : entries_) {
      if (entry.operation != nullptr) doomed.push_back(entry.operation);
    }
    submitted_.clear();
  }
  for (const OperationPtr& operation : doomed)
    finish(std::span(&operation, 1), named(error, title_of(operation->request())));
}

Operation& TicketTable::at(Ticket ticket) {
  const std::uint32_t slot = slot_of(ticket);
  if (ticket == 0 || slot >= operations_.size() || operations_[slot].ticket != ticket || operations_[slot].abandoned) {
    throw InvalidArgument("Ticket " + std::to_string(ticket) + " was not created or has been cleared.");
  }
  return operations_[slot];
}

OperationPtr TicketTable::find(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  return &at(ticket);
}

bool TicketTable::release_if_done(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  Operation& operation = at(ticket);
  if (!operation.done() || operation.error) return false;
  recycle(operation);
  return true;
}

std::optional<Ticket> TicketTable::release_if_done(std::span<const Ticket> tickets) {
  const std::lock_guard lock(mutex_);
  for (const Ticket ticket : tickets) {
    const Operation& operation = at(ticket);
    if (!operation.done() || operation.error) return ticket;
  }
  for (const Ticket ticket : tickets) recycle(at(ticket));
  return std::nullopt;
}

void TicketTable::sleep(Operation& operation, Deadline deadline) {
  std::uint32_t seen = Operation::kPending;
  // Acquire on failure: it may be done. On success nothing is published but that somebody sleeps.
  if (!operation.state.compare_exchange_strong(seen, Operation::kAwaited, std::memory_order_acquire) &&
      seen != Operation::kAwaited) {
    return;
  }
  futex_wait(operation.state, Operation::kAwaited, deadline, FutexScope::kPrivate);
}

bool TicketTable::attend(Operation& operation, Deadline deadline) {
  while (!operation.done() && !deadline.expired()) sleep(operation, deadline);
  return operation.done();
}

void TicketTable::release(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  const std::uint32_t slot = slot_of(ticket);
  if (ticket == 0 || slot >= operations_.size() || operations_[slot].ticket != ticket) return;
  Operation& operation = operations_[slot];
  if (operation.done()) {
    recycle(operation);
  } else {
    operation.abandoned = true;  // its memory is in use until it is done
  }
}

}  // namespace ringtune
