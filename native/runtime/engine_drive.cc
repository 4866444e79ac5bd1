// Who turns the engine, and when it sleeps.
#include <unistd.h>

#include "base/cores.h"
#include "base/error.h"
#include "base/futex.h"
#include "base/log.h"
#include "runtime/engine.h"
#include "runtime/gpu/data_paths.h"

namespace ringtune {
namespace {

constexpr std::int64_t kRoundSliceNs = 20'000'000;     // how long a wish to leave may go unnoticed in a round
constexpr std::int64_t kReceivingSliceNs = 5'000'000;  // or a message of another process set
constexpr std::int64_t kHoldOffNs = 1'000'000;         // news that come to no caller wait so long, at most
constexpr std::int64_t kUnlimited = std::int64_t{1} << 60;
/// Cores that this rank shares with `neighbours` ranks, for each of them.
double cores_per_rank(int neighbours) noexcept {
  const auto own = static_cast<int>(usable_cores().count());
  // A rank that may use only some cores has been given them for itself.
  return own < ::sysconf(_SC_NPROCESSORS_ONLN) ? own : static_cast<double>(own) / neighbours;
}

}  // namespace

void Engine::set_compute_threads(int threads) noexcept {
  const bool full = cores_per_rank(neighbours_) < threads + 1;
  crowded_.store(options_.overlap == Overlap::kNever || (options_.overlap == Overlap::kAuto && full),
                 std::memory_order_relaxed);
}

void Engine::asked() noexcept {
  if (!crowded_.load(std::memory_order_relaxed)) return;
  // relaxed: read by the thread that drives next, or at the end of the time that is held back.
  if (asked_ns_.load(std::memory_order_relaxed) == 0) asked_ns_.store(now_ns(), std::memory_order_relaxed);
}

const Operation& Engine::asked_for(const Operation& operation) noexcept {
  asked();
  if (!operation.done() && held_.load(std::memory_order_relaxed)) nudge();
  return operation;
}

/// Whether the cycle thread leaves what has been submitted to the callers, for now (overlap_policy.h).
bool Engine::holds_back() noexcept {
  if (!crowded_.load(std::memory_order_relaxed)) return false;
  if (tickets_.open() == 0 || !negotiator_.in_schedule()) return false;
  const std::int64_t now = now_ns();
  if (const std::uint64_t pass = negotiator_.schedule_pass(); pass != overlap_policy_.pass()) {
    overlap_policy_.asked(asked_ns_.exchange(0, std::memory_order_relaxed));  // of the last one
    overlap_policy_.in_flight(pass, now);
  } else {
    overlap_policy_.asked(asked_ns_.load(std::memory_order_relaxed));
    if (executor_->awaited(schedule_communicator())) overlap_policy_.hurry();
  }
  return !negotiator_.round_posted() && !leave_requested_.load(std::memory_order_relaxed) &&
         waiting_callers_.load(std::memory_order_relaxed) == 0 && executor_->shares_memory(schedule_communicator()) &&
         overlap_policy_.until_ns() > now;
}

bool Engine::try_drive() noexcept {
  if (!drive_.try_lock()) return false;
  quiet_bytes_.store(0, std::memory_order_relaxed);  // who submits now rings: the driver decides anew what can wait
  return true;
}

void Engine::stop_driving() noexcept {
  drive_.unlock();
  // Sequentially consistent on both sides: either the cycle thread sees the new count and does not sleep, or we see
  // that it insists.
  stops_.fetch_add(1);
  if (parked_.load() == Parked::kMustRun) call();
}

/// Wakes the thread that sleeps in the engine: the cycle thread, or a caller that drives.
void Engine::nudge() noexcept {
  fabric_.waker().notify();
  call();
}

void Engine::call() noexcept {
  calls_.fetch_add(1);
  if (parked_.load() != Parked::kNo) futex_wake(calls_, 1, FutexScope::kPrivate);
}

/// The cycle thread has found a caller driving: sleeps until it is called. Callers that communicate in one call after
/// the other need no help, and to wake it between them would take a core from the ranks: it is patient while they see
/// to everything. When they do not - a batch that is run alone looks at no message - it insists: the next caller that
/// stops calls it.
void Engine::park(const Seen& seen) noexcept {
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

/// When the engine must be turned if nothing happens.
Deadline Engine::next_turn() const noexcept {
  Deadline next = Deadline::at(negotiator_.next_wake_ns());
  if (negotiator_.round_posted())
    next = executor_->round_on_links() ? earlier(next, round_deadline()) : Deadline::never();
  return leaving_ ? earlier(next, Deadline::at(leave_deadline_ns_.load(std::memory_order_relaxed))) : next;
}

void Engine::begin_waiting() noexcept {
  waiting_callers_.fetch_add(1, std::memory_order_relaxed);  // as in wait()
  nudge();
}

bool Engine::wait(Operation& operation, Deadline deadline) {
  // Relaxed: the driving thread reads it in its next cycle, and the nudge below orders it for a driver that sleeps.
  waiting_callers_.fetch_add(1, std::memory_order_relaxed);
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
  waiting_callers_.fetch_sub(1, std::memory_order_relaxed);
  return operation.done();
}

/// Drives until the operation is done, the deadline, or until there is nothing more to drive.
void Engine::drive(Operation& operation, Deadline deadline) noexcept {
  try {
    overlap_policy_.asked(asked_ns_.load(std::memory_order_relaxed));
    while (!ended_ && !operation.done() && !finished()) {
      const std::uint32_t ticket = fabric_.waker().prepare();
      const bool worked = cycle();
      cycles_.fetch_add(1, std::memory_order_relaxed);
      if (operation.done() || deadline.expired()) return;
      if (!worked) rest(ticket, earlier(deadline, next_turn()));
    }
  } catch (...) {
    stop(std::current_exception());
  }
}

std::int64_t Engine::run_alone(const PersistentRequest& persistent, const Memory& memory, std::int64_t now_ns,
                               Ticket& ticket) {
  if (!try_drive()) return 0;
  const auto stop_at_the_end = [](Engine* engine) { engine->stop_driving(); };
  const std::unique_ptr<Engine, decltype(stop_at_the_end)> driving(this, stop_at_the_end);
  if (!expects_alone(persistent)) return 0;
  Operation& operation = tickets_.begin(persistent, memory, now_ns);
  try {
    return run_inline(operation, ticket);
  } catch (...) {
    // The operation fails with all others and is gone then: its caller submits it again and gets the error.
    stop(std::current_exception());
    return 0;
  }
}

/// Nothing but this is to be done. Relaxed: what other threads hand in at this moment has its turn afterwards.
bool Engine::expects_alone(const PersistentRequest& persistent) const noexcept {
  return !ended_ && !leaving_ && !leave_requested_.load(std::memory_order_relaxed) &&
         !mail_.load(std::memory_order_relaxed) && tickets_.open() == 0 &&
         negotiator_.expects_alone(persistent.prepared->request);
}

/// When it ended; 0 and the ticket when it goes on, in the round that is posted now or without the schedule, or when
/// what it has gathered did not fit where it was to go.
std::int64_t Engine::run_inline(Operation& operation, Ticket& ticket) {
  const std::int64_t now = operation.submitted_ns;
  in_flight_bytes_ += operation.prepared->bytes;
  const SharedRequest request(operation.prepared, &operation.prepared->request);
  post_round(negotiator_.run_inline(request, reinterpret_cast<Tag>(&operation), now), now);
  const std::optional<bool> agreed = executor_->round_agreed(Deadline::at(0));
  if (agreed == true && operation.room == 0) return end_round(true);
  ticket = tickets_.hand_over(operation);
  if (!agreed) return 0;
  const std::int64_t end_ns = end_round(*agreed);
  if (!*agreed || !operation.gathered.empty()) return 0;
  tickets_.release(std::exchange(ticket, 0));
  return end_ns;
}

void Engine::run() noexcept {
  while (turn()) {
  }
}

/// One turn of the cycle thread; false when the engine has come to its end.
bool Engine::turn() noexcept {
  const Seen seen{calls_.load(), stops_.load()};
  const std::uint32_t ticket = fabric_.waker().prepare();
  if (!try_drive()) {
    park(seen);
    return true;
  }
  must_run_ = false;
  hold_off_until_ns_ = 0;
  std::unique_lock driving(drive_, std::adopt_lock);
  if (ended_) return false;
  try {
    const bool held = holds_back();
    const bool worked = !finished() && cycle(held);
    if (finished()) {
      // Peers that wait in a round for this rank's part must not take it for a clean departure.
      if (!negotiator_.round_posted() && executor_->drained()) fabric_.leave();
      stop(std::make_exception_ptr(ShutDown("ringtune has been shut down on this rank; call init() again to go on")));
      return false;
    }
    if (worked) return true;
    Deadline deadline = next_turn();
    if (held) deadline = earlier(deadline, Deadline::at(overlap_policy_.until_ns()));
    if (waits_in_shm_group()) {
      rest(ticket, deadline);
      return true;
    }
    quiet_bytes_.store(held ? kUnlimited : static_cast<std::int64_t>(negotiator_.bundle_room()),
                       std::memory_order_relaxed);
    held_.store(held, std::memory_order_relaxed);
    driving.unlock();
    fabric_.waker().wait(ticket, deadline);
    held_.store(false, std::memory_order_relaxed);
    quiet_bytes_.store(0, std::memory_order_relaxed);
  } catch (...) {
    if (!driving) driving.lock();
    stop(std::current_exception());
    return false;
  }
  return true;
}

bool Engine::waits_in_shm_group() const noexcept { return negotiator_.round_posted() && !executor_->round_on_links(); }

/// Waits for news with the drive mutex held: of the other ranks in a round in shared memory, or of any rank.
void Engine::rest(std::uint32_t waker_ticket, Deadline deadline) {
  if (waits_in_shm_group()) {
    const std::int64_t hold_off_end_ns = round_since_ns_ + overlap_policy_.hold_off_ns();
    const std::int64_t now = now_ns();
    const Deadline slice = Deadline::after(receives_in_round() ? kReceivingSliceNs : kRoundSliceNs);
    if (resume_round(
            earlier(deadline, now < hold_off_end_ns ? earlier(slice, Deadline::at(hold_off_end_ns)) : slice))) {
      return;
    }
    // Wakes the ranks that hold the batch back: this rank has nothing else to do.
    if (now_ns() >= hold_off_end_ns) {
      for (const int rank : executor_->absent_in_round(schedule_communicator())) fabric_.ring(rank);
    }
  } else {
    fabric_.waker().wait(waker_ticket, deadline);
  }
}

}  // namespace ringtune
