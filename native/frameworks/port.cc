#include "frameworks/port.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "transport/thread.h"

namespace ringtune::frameworks {
namespace {

// One may be busy with what a framework runs in its callback.
constexpr int kCompletionThreads = 2;

// A collective that the calling thread carries out spares two wakes of other threads, each of which takes longer than
// an exchange of that many bytes.
constexpr std::size_t kMostItselfBytes = 1 << 20;
// Where the other ranks do not come in time, the caller has waited for nothing. A try that succeeds earns credit, one
// that fails costs more; without credit every eighth call is a try. It is the same call on all ranks, which count
// alike: a rank that leaves it to its threads comes too late for those that try.
constexpr int kCreditMax = 8;
constexpr int kFailureCosts = 4;
constexpr std::uint32_t kCallsPerTry = 8;
// Ranks whose threads have ended the last collective come apart by the time that two of them take to wake: with less
// patience than that they would not find back to carrying them out themselves.
constexpr std::int64_t kPatienceNs = 200'000;
constexpr std::int64_t kNoTimeoutNs = std::int64_t{1} << 60;

/// Whether its result lies where it was asked for and nothing else is to be told of it.
bool is_plain(const Submission& call) noexcept {
  const CollectiveKind kind = call.request.kind;
  return kind == CollectiveKind::kAllreduce || kind == CollectiveKind::kBroadcast;
}

Outcomes all_alike(std::size_t count, const std::exception_ptr& error) {
  Outcomes outcomes;
  for (std::size_t i = 0; i < count; ++i) outcomes.push_back(outcome_of(error));
  return outcomes;
}

template <typename Class>
bool is(const Error& error) noexcept {
  return dynamic_cast<const Class*>(&error) != nullptr;
}

/// The class of `ringtune.errors` that Python knows the error by (core/native.py).
const char* class_of(const Error& error) noexcept {
  if (is<PeerLost>(error)) return "PeerLost";
  if (is<Timeout>(error)) return "Timeout";
  if (is<SomeAbsent>(error)) return "SomeAbsent";
  if (is<SomeSparse>(error)) return "SomeSparse";
  if (is<Mismatch>(error)) return "Mismatch";
  if (is<InvalidArgument>(error)) return "InvalidArgument";
  if (is<Protocol>(error)) return "Protocol";
  if (is<ShutDown>(error)) return "ShutDown";
  if (is<DeviceError>(error)) return "DeviceError";
  if (is<InvariantError>(error)) return "InvariantError";
  return "RuntimeFailure";
}

/// Carries a plain call out on this thread: 0 when it is done, the ticket of what has failed, or, with a listener, of
/// what goes on. Without one it blocks. Throws as Runtime::submit.
Ticket run_here(Runtime& runtime, Submission call, FinishListener* listener) {
  const Memory memory{call.input, call.output, {}, listener};
  const PersistentRequest persistent = runtime.keep(std::move(call));
  const auto drop = [&runtime](const PersistentRequest* kept) { runtime.drop(*kept); };
  const std::unique_ptr<const PersistentRequest, decltype(drop)> kept(&persistent, drop);
  return listener != nullptr ? runtime.run_or_submit(persistent, memory, kPatienceNs)
                             : runtime.run_now(persistent, memory, kNoTimeoutNs);
}

/// Takes what a finished operation yields, and releases it.
Outcome settle(Runtime& runtime, Ticket ticket) {
  Operation& operation = *runtime.operation(ticket);
  Outcome outcome;
  if (operation.error) {
    outcome = outcome_of(operation.error);
  } else {
    outcome.number = operation.number;
    const CollectiveKind kind = operation.request().kind;
    if (kind == CollectiveKind::kAllgather || kind == CollectiveKind::kAlltoall) {
      outcome.shape = operation.gathered_shape;
      outcome.splits = operation.splits;
      outcome.gathered = std::move(operation.gathered);
    }
  }
  runtime.release(ticket);
  return outcome;
}

}  // namespace

Outcome outcome_of(const std::exception_ptr& error) {
  Outcome outcome;
  try {
    std::rethrow_exception(error);
  } catch (const Error& found) {
    outcome.error = class_of(found);
    outcome.text = found.what();
  } catch (const std::exception& found) {
    outcome.error = "RuntimeFailure";
    outcome.text = found.what();
  }
  return outcome;
}

Outcome no_session() {
  Outcome outcome;
  outcome.error = "NotInitialized";
  outcome.text = "Horovod has not been initialized; use hvd.init().";
  return outcome;
}

/// Holds the runtime for one call.
class Port::Use {
 public:
  explicit Use(Port& port) : port_(port), runtime_(port.enter()) {}
  ~Use() {
    if (runtime_ != nullptr) port_.leave();
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  [[nodiscard]] Runtime* runtime() const noexcept { return runtime_; }
  /// Whoever ends the call leaves.
  void hand_over() noexcept { runtime_ = nullptr; }

 private:
  Port& port_;
  Runtime* runtime_;
};

/// Calls that were submitted and are not through.
class Port::Pending final : public FinishListener {
 public:
  Pending(Port& port, Runtime& runtime, Done done) : port_(port), runtime_(runtime), done_(std::move(done)) {}

  /// `itself`: of one call, which this thread tries to carry out. True when all have come to an end by then: the caller
  /// completes them.
  [[nodiscard]] bool submit(Calls calls, bool itself) {
    for (Submission& call : calls) {
      // Acquire/release: who counts down to 0 sees all tickets.
      open_.fetch_add(1, std::memory_order_relaxed);
      try {
        tickets_.push_back(itself ? run_here(runtime_, std::move(call), this)
                                  : runtime_.submit(std::move(call), *this));
        if (tickets_.back() == 0) (void)is_last();  // nobody is told
      } catch (...) {
        refused_ = std::current_exception();
        (void)is_last();
        break;
      }
    }
    missing_ = calls.size() - tickets_.size();
    if (itself) port_.learn(missing_ == 0 && tickets_.front() == 0);
    return is_last();
  }
  void finished(Operation&) noexcept override {
    if (is_last()) port_.finish(this);
  }
  /// On a thread of the port's or the one that has asked for it.
  void complete() {
    Outcomes outcomes;
    for (const Ticket ticket : tickets_) outcomes.push_back(ticket == 0 ? Outcome() : settle(runtime_, ticket));
    for (std::size_t i = 0; i < missing_; ++i) outcomes.push_back(outcome_of(refused_));
    done_(std::move(outcomes));
  }

 private:
  [[nodiscard]] bool is_last() noexcept { return open_.fetch_sub(1, std::memory_order_acq_rel) == 1; }

  Port& port_;
  Runtime& runtime_;
  Done done_;
  std::vector<Ticket> tickets_;
  std::exception_ptr refused_;  // why not all were submitted
  std::size_t missing_ = 0;
  std::atomic<std::size_t> open_{1};  // the one that submits
};

Port::~Port() {
  {
    const std::lock_guard lock(finished_mutex_);
    stopping_ = true;
  }
  finished_some_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Port::open(Runtime& runtime) {
  const std::lock_guard lock(mutex_);
  runtime_ = &runtime;
}

void Port::close(const Runtime& runtime) {
  std::unique_lock lock(mutex_);
  if (runtime_ != &runtime) return;
  runtime_ = nullptr;
  unused_.wait(lock, [this] { return users_ == 0; });
}

bool Port::is_open() const {
  const std::lock_guard lock(mutex_);
  return runtime_ != nullptr;
}

Runtime* Port::enter() {
  const std::lock_guard lock(mutex_);
  if (runtime_ != nullptr) ++users_;
  return runtime_;
}

void Port::leave() noexcept {
  const std::lock_guard lock(mutex_);
  if (--users_ == 0) unused_.notify_all();
}

bool Port::ask(const std::function<void(const Runtime&)>& question) {
  const Use use(*this);
  if (use.runtime() != nullptr) question(*use.runtime());
  return use.runtime() != nullptr;
}

Outcomes Port::run(Calls calls) {
  const Use use(*this);
  Outcomes outcomes;
  if (use.runtime() == nullptr) {
    for (std::size_t i = 0; i < calls.size(); ++i) outcomes.push_back(no_session());
    return outcomes;
  }
  Runtime& runtime = *use.runtime();
  watch(runtime, calls);
  Runtime::begin_blocking();
  std::vector<Ticket> tickets;
  std::exception_ptr refused;
  try {
    for (const Submission& call : calls) runtime.check(call);
    if (calls.size() == 1 && is_plain(calls.front())) {
      tickets.push_back(run_here(runtime, std::move(calls.front()), nullptr));
    } else {
      for (Submission& call : calls) tickets.push_back(runtime.submit(std::move(call)));
    }
  } catch (...) {
    refused = std::current_exception();
  }
  for (const Ticket ticket : tickets) {
    if (ticket == 0) {
      outcomes.emplace_back();
      continue;
    }
    try {
      (void)runtime.wait(ticket, Deadline::never());
    } catch (const Error&) {
      // settle() tells of it
    }
    outcomes.push_back(settle(runtime, ticket));
  }
  while (outcomes.size() < calls.size()) outcomes.push_back(outcome_of(refused));
  runtime.end_blocking();
  waited();
  return outcomes;
}

void Port::submit(Calls calls, Done done) {
  Use use(*this);
  if (use.runtime() == nullptr) {
    Outcomes outcomes;
    for (std::size_t i = 0; i < calls.size(); ++i) outcomes.push_back(no_session());
    return done(std::move(outcomes));
  }
  try {
    for (const Submission& call : calls) use.runtime()->check(call);
    watch(*use.runtime(), calls);
    const std::lock_guard lock(finished_mutex_);
    while (threads_.size() < kCompletionThreads) {
      threads_.push_back(start_thread("ringtune-done", [this] { complete_on_this_thread(); }));
    }
  } catch (...) {
    return done(all_alike(calls.size(), std::current_exception()));
  }
  auto* const pending = new Pending(*this, *use.runtime(), std::move(done));  // complete() deletes it
  use.hand_over();
  const bool itself = tries_itself(calls);
  if (pending->submit(std::move(calls), itself)) complete(pending);
}

bool Port::tries_itself(const Calls& calls) noexcept {
  if (calls.size() != 1 || !is_plain(calls.front()) || byte_count(calls.front().request) > kMostItselfBytes) {
    return false;
  }
  const bool is_turn = small_calls_.fetch_add(1, std::memory_order_relaxed) % kCallsPerTry == 0;
  return is_turn || credit_.load(std::memory_order_relaxed) > 0;
}

void Port::learn(bool could_itself) noexcept {
  const int credit = credit_.load(std::memory_order_relaxed);
  credit_.store(could_itself ? std::min(credit + 1, kCreditMax) : std::max(credit - kFailureCosts, 0),
                std::memory_order_relaxed);
}

void Port::complete(Pending* pending) {
  const std::unique_ptr<Pending> owned(pending);
  waited();
  pending->complete();
  leave();
}

void Port::finish(Pending* pending) {
  {
    const std::lock_guard lock(finished_mutex_);
    finished_.push_back(pending);
  }
  finished_some_.notify_one();
}

void Port::complete_on_this_thread() {
  std::unique_lock lock(finished_mutex_);
  while (true) {
    finished_some_.wait(lock, [this] { return stopping_ || !finished_.empty(); });
    if (finished_.empty()) return;
    Pending* const pending = finished_.front();
    finished_.pop_front();
    lock.unlock();
    complete(pending);
    lock.lock();
  }
}

void Port::end_step() {
  const Use use(*this);
  if (use.runtime() == nullptr) return;
  const std::lock_guard lock(steps_mutex_);
  detecting_ = false;
  add_step(*use.runtime(), false);
}

void Port::follow_steps(bool detect) {
  const std::lock_guard lock(steps_mutex_);
  following_ = true;
  detecting_ = detect;
  watch_ = StepWatch();
  steps_.clear();
}

std::optional<EndedStep> Port::next_step() {
  std::unique_lock lock(steps_mutex_);
  stepped_.wait(lock, [this] { return !following_ || !steps_.empty(); });
  if (steps_.empty()) return std::nullopt;
  const EndedStep step = steps_.front();
  steps_.pop_front();
  return step;
}

void Port::stop_following() {
  const std::lock_guard lock(steps_mutex_);
  following_ = detecting_ = false;
  stepped_.notify_all();
}

/// With the lock on steps.
void Port::add_step(Runtime& runtime, bool detected) {
  const EndedStep step{runtime.end_step(!detected), detected};
  if (!following_) return;
  steps_.push_back(step);
  stepped_.notify_all();
}

void Port::watch(Runtime& runtime, const Calls& calls) {
  const std::lock_guard lock(steps_mutex_);
  if (!detecting_) return;
  for (const Submission& call : calls) {
    const Request& request = call.request;
    const StepWatch::Token token =
        StepWatch::token_of(request.kind, request.process_set, request.name, element_count(request));
    if (!watch_.goes_on(token) && watch_.submitted(token, now_ns())) add_step(runtime, true);
  }
}

void Port::waited() {
  const std::lock_guard lock(steps_mutex_);
  if (detecting_) watch_.waited();
}

Port& port() {
  // Never destroyed: at exit a framework's threads may still ask it.
  static Port& only = *new Port;
  return only;
}

}  // namespace ringtune::frameworks
