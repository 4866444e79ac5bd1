#include "runtime/driver.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "base/cores.h"
#include "base/futex.h"
#include "base/log.h"

namespace ringtune {
namespace {

constexpr std::int64_t kRoundSliceNs = 20'000'000;     // how long a wish to leave may go unnoticed in a round
constexpr std::int64_t kReceivingSliceNs = 5'000'000;  // or a message of another process set
constexpr std::int64_t kHoldOffNs = 1'000'000;         // news that come to no caller wait so long, at most
constexpr std::int64_t kUnlimited = std::int64_t{1} << 60;

thread_local int blocking_calls = 0;  // of this thread

/// Cores that this rank shares with `neighbours` ranks, for each of them.
double cores_per_rank(int neighbours) noexcept {
  const auto own = static_cast<int>(usable_cores().count());
  // A rank that may use only some cores has been given them for itself.
  return own < ::sysconf(_SC_NPROCESSORS_ONLN) ? own : static_cast<double>(own) / neighbours;
}

void pin(std::thread& thread, int core) {
  if (core < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(core), &set);
  if (pthread_setaffinity_np(thread.native_handle(), sizeof(set), &set) != 0) {
    log(LogLevel::kWarning, "the cycle thread cannot be bound to core ", core, ": no such core for this process");
  }
}

int ranks_of_this_host(const Fabric& fabric) {
  const std::vector<std::string> hosts = fabric.hosts();
  return static_cast<int>(std::count(hosts.begin(), hosts.end(), hosts.at(static_cast<std::size_t>(fabric.rank()))));
}

}  // namespace

Driver::Driver(Engine& engine, const EngineParts& parts, const DriverOptions& options)
    : engine_(engine),
      fabric_(parts.fabric),
      tickets_(parts.tickets),
      mailbox_(parts.mailbox),
      status_(parts.status),
      overlap_(options.overlap),
      neighbours_(ranks_of_this_host(fabric_)) {
  set_compute_threads(1);
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "ringtune-cycle");
  pin(thread_, options.thread_affinity);
}

Driver::~Driver() { leave(Deadline::after(0)); }

void Driver::submitted(std::size_t bytes, bool awaited) noexcept {
  if (awaited && blocking_calls > 0) return;
  // While a bundle is held back the cycle thread wakes at the end of the cycle time anyway: a wake per gradient would
  // cost the training thread a system call each.
  const auto size = static_cast<std::int64_t>(bytes);
  if (quiet_bytes_.fetch_sub(size, std::memory_order_relaxed) <= size) nudge();
}

void Driver::begin_blocking() noexcept { ++blocking_calls; }

void Driver::end_blocking() noexcept {
  if (--blocking_calls == 0 && tickets_.open() > 0) nudge();
}

void Driver::set_compute_threads(int threads) noexcept {
  const bool full = cores_per_rank(neighbours_) < threads + 1;
  crowded_.store(overlap_ == Overlap::kNever || (overlap_ == Overlap::kAuto && full), std::memory_order_relaxed);
}

void Driver::asked() noexcept {
  if (!crowded_.load(std::memory_order_relaxed)) return;
  // Read by the thread that drives next, or at the end of the time that is held back.
  if (asked_ns_.load(std::memory_order_relaxed) == 0) asked_ns_.store(now_ns(), std::memory_order_relaxed);
}

const Operation& Driver::asked_for(const Operation& operation) noexcept {
  asked();
  if (!operation.done() && held_.load(std::memory_order_relaxed)) nudge();
  return operation;
}

/// Whether the cycle thread leaves what has been submitted to the callers, for now (overlap_policy.h).
bool Driver::holds_back() noexcept {
  if (!crowded_.load(std::memory_order_relaxed) || tickets_.open() == 0) return false;
  const ScheduleRunner& schedule = engine_.schedule();
  const std::optional<std::uint64_t> pass = schedule.pass();
  if (!pass) return false;
  const std::int64_t now = now_ns();
  if (*pass != overlap_policy_.pass()) {
    overlap_policy_.asked(asked_ns_.exchange(0, std::memory_order_relaxed));  // of the last one
    overlap_policy_.in_flight(*pass, now);
  } else {
    overlap_policy_.asked(asked_ns_.load(std::memory_order_relaxed));
    if (schedule.awaited()) overlap_policy_.hurry();
  }
  return !mailbox_.leave_requested() && !status_.waited_for() && schedule.can_hold_back() &&
         overlap_policy_.until_ns() > now;
}

bool Driver::try_drive() noexcept {
  if (!drive_.try_lock()) return false;
  quiet_bytes_.store(0, std::memory_order_relaxed);  // who submits now rings: the driver decides anew what can wait
  return true;
}

void Driver::stop_driving() noexcept {
  drive_.unlock();
  // Sequentially consistent on both sides: either the cycle thread sees the new count and does not sleep, or we see
  // that it insists.
  stops_.fetch_add(1);
  if (parked_.load() == Parked::kMustRun) call();
}

void Driver::nudge() noexcept {
  fabric_.waker().notify();
  call();
}

void Driver::call() noexcept {
  calls_.fetch_add(1);
  if (parked_.load() != Parked::kNo) futex_wake(calls_, 1, FutexScope::kPrivate);
}

/// The cycle thread has found a caller driving: sleeps until it is called. Callers that communicate in one call after
/// the other need no help, and to wake it between them would take a core from the ranks: it is patient while they see
/// to everything. When they do not - a batch that is run alone looks at no message - it insists: the next caller that
/// stops calls it.
void Driver::park(const Seen& seen) noexcept {
  if (!must_run_) {
    parked_.store(Parked::kHoldsOff);
    if (hold_off_until_ns_ == 0) hold_off_until_ns_ = now_ns() + kHoldOffNs;
    while (true) {
      const std::uint32_t cycles = cycles_.load(std::memory_order_relaxed);
      futex_wait(calls_, seen.calls, Deadline::at(hold_off_until_ns_), FutexScope::kPrivate);
      if (calls_.load() != seen.calls) break;
      const std::int64_t now = now_ns();
      if (now < hold_off_until_ns_) continue;  // woken for no reason
      must_run_ = cycles_.load(std::memory_order_relaxed) == cycles;
      if (must_run_) break;
      hold_off_until_ns_ = now + kHoldOffNs;
    }
  } else {
    parked_.store(Parked::kMustRun);
    if (stops_.load() == seen.stops) futex_wait(calls_, seen.calls, Deadline::never(), FutexScope::kPrivate);
  }
  parked_.store(Parked::kNo);
}

void Driver::begin_waiting() noexcept {
  status_.begin_waiting();
  nudge();
}

bool Driver::wait(Operation& operation, Deadline deadline) {
  status_.begin_waiting();
  while (!operation.done() && !deadline.expired()) {
    if (try_drive()) {
      drive(operation, deadline);
      stop_driving();
      // What is left is the cycle thread's: other callers may wait for it, here and on the other ranks.
      if (tickets_.open() > 0) nudge();
      if (!operation.done() && !deadline.expired()) TicketTable::sleep(operation, deadline);
    } else {
      nudge();  // the operation may have been submitted, and the wish to wait come, after the driver last looked
      TicketTable::sleep(operation, deadline);
    }
  }
  status_.end_waiting();
  return operation.done();
}

/// Drives until the operation is done, the deadline, or until there is nothing more to drive.
void Driver::drive(Operation& operation, Deadline deadline) noexcept {
  try {
    overlap_policy_.asked(asked_ns_.load(std::memory_order_relaxed));
    while (!engine_.ended() && !operation.done() && !engine_.finished()) {
      const std::uint32_t ticket = fabric_.waker().prepare();
      const bool worked = engine_.cycle();
      cycles_.fetch_add(1, std::memory_order_relaxed);
      if (operation.done() || deadline.expired()) return;
      if (!worked) rest(ticket, earlier(deadline, engine_.next_turn()));
    }
  } catch (...) {
    engine_.stop(std::current_exception());
  }
}

std::int64_t Driver::run_alone(const PersistentRequest& persistent, const Memory& memory, std::int64_t now_ns,
                               Deadline deadline, Ticket& ticket) {
  if (!try_drive()) return 0;
  const auto stop_at_the_end = [](Driver* driver) { driver->stop_driving(); };
  const std::unique_ptr<Driver, decltype(stop_at_the_end)> driving(this, stop_at_the_end);
  if (!engine_.expects_alone(persistent)) return 0;
  Operation& operation = tickets_.begin(persistent, memory, now_ns);
  try {
    return engine_.run_inline(operation, memory.listener, deadline, ticket);
  } catch (...) {
    // The operation fails with all others and is gone then: its caller submits it again and gets the error.
    engine_.stop(std::current_exception());
    return 0;
  }
}

void Driver::run() noexcept {
  while (turn()) {
  }
}

/// One turn of the cycle thread; false when the engine has come to its end.
bool Driver::turn() noexcept {
  const Seen seen{calls_.load(), stops_.load()};
  const std::uint32_t ticket = fabric_.waker().prepare();
  if (!try_drive()) {
    park(seen);
    return true;
  }
  must_run_ = false;
  hold_off_until_ns_ = 0;
  std::unique_lock driving(drive_, std::adopt_lock);
  if (engine_.ended()) return false;
  try {
    const bool held = holds_back();
    const bool worked = !engine_.finished() && engine_.cycle(held);
    if (engine_.finished()) {
      engine_.depart();
      return false;
    }
    if (worked) return true;
    Deadline deadline = engine_.next_turn();
    if (held) deadline = earlier(deadline, Deadline::at(overlap_policy_.until_ns()));
    if (engine_.schedule().waits_in_shm_group()) {
      rest(ticket, deadline);
      return true;
    }
    quiet_bytes_.store(held ? kUnlimited : static_cast<std::int64_t>(engine_.bundle_room()), std::memory_order_relaxed);
    held_.store(held, std::memory_order_relaxed);
    driving.unlock();
    fabric_.waker().wait(ticket, deadline);
    held_.store(false, std::memory_order_relaxed);
    quiet_bytes_.store(0, std::memory_order_relaxed);
  } catch (...) {
    if (!driving) driving.lock();
    engine_.stop(std::current_exception());
    return false;
  }
  return true;
}

/// Waits for news with the drive mutex held: of the other ranks in a round in shared memory, or of any rank.
void Driver::rest(std::uint32_t waker_ticket, Deadline deadline) {
  ScheduleRunner& schedule = engine_.schedule();
  if (!schedule.waits_in_shm_group()) return fabric_.waker().wait(waker_ticket, deadline);
  const std::int64_t hold_off_end_ns = schedule.since_ns() + overlap_policy_.hold_off_ns();
  const std::int64_t now = now_ns();
  const Deadline slice = Deadline::after(schedule.receives() ? kReceivingSliceNs : kRoundSliceNs);
  if (schedule.resume(
          earlier(deadline, now < hold_off_end_ns ? earlier(slice, Deadline::at(hold_off_end_ns)) : slice))) {
    return;
  }
  // Wakes the ranks that hold the batch back: this rank has nothing else to do.
  if (now_ns() >= hold_off_end_ns) {
    for (const int rank : schedule.absent()) fabric_.ring(rank);
  }
}

void Driver::leave(Deadline deadline, const std::string& how, bool failed) {
  if (!thread_.joinable()) return;
  mailbox_.leave({.who = own_name(fabric_), .how = how, .failed = failed}, deadline);
  nudge();
  thread_.join();
  engine_.stall_reporter().stop();
}

}  // namespace ringtune
