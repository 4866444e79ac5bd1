// Where a framework's handlers - custom calls of compiled code, kernels of a graph - reach the runtime of the open
// session: from any thread, without Python. What a framework asks for is done without telling who asks.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/home_process.h"
#include "base/result_memory.h"
#include "runtime/runtime.h"
#include "runtime/step_watch.h"
#include "runtime/submission.h"

namespace ringtune::frameworks {

/// What came of a collective.
struct Outcome {
  [[nodiscard]] bool failed() const noexcept { return !error.empty(); }

  std::string error;                 // its class in `ringtune.errors`, such as "PeerLost"; empty: none
  std::string text;                  // what it says
  std::vector<std::int64_t> shape;   // allgather, alltoall: of the result
  std::vector<std::int64_t> splits;  // alltoall: rows from each member
  ResultMemory gathered;             // allgather, alltoall: the result, unless it is at the submission's output
  std::int64_t number = 0;           // join: who came last
};

[[nodiscard]] Outcome outcome_of(const std::exception_ptr& error);
/// Of what is asked while no session is open.
[[nodiscard]] Outcome no_session();

/// Collectives that are submitted together, in this order: alone, or all members of a group.
using Calls = std::vector<Submission>;
using Outcomes = std::vector<Outcome>;  // of each of them
using Done = std::function<void(Outcomes)>;

/// A step of the training that ended in a framework's program.
struct EndedStep {
  StepStats stats;
  bool detected = false;  // where operations repeated themselves; false: the program has marked it
};

/// Thread-safe. One a process (`port()`); a test makes its own.
class Port {
 public:
  Port() = default;
  ~Port();
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  /// The runtime that is asked from now on; borrowed until close().
  void open(Runtime& runtime);
  /// Nobody asks that runtime any more when this returns: blocks until what was asked for is done, so the runtime must
  /// be shut down before. Nothing where another runtime is open. Not to be called by a `Done`.
  void close(const Runtime& runtime);
  [[nodiscard]] bool is_open() const;

  /// Calls `question`, which must not block, with the runtime; false where no session is open.
  bool ask(const std::function<void(const Runtime&)>& question);
  /// Blocks until all of them are done; the calling thread drives the runtime meanwhile. Does not throw: errors,
  /// also that no session is open, are outcomes.
  [[nodiscard]] Outcomes run(Calls calls);
  /// Waits for no rank longer than a moment. `done` is called once, on a thread of the port's own: it may run what the
  /// framework has waiting, and even ask for the next collective. What is refused at once - no session, an invalid
  /// argument - is reported on the calling thread, before this returns, and so is a small collective that it could
  /// carry out itself since all ranks came together. The memory of the calls must live until `done` is called.
  void submit(Calls calls, Done done);

  /// A step ends here: the program marks it. From then on none is detected.
  void end_step();
  /// Steps are kept for next_step() from now on; with `detect`, until one is marked, also those that end where the
  /// operations repeat themselves (runtime/step_watch.h), whichever threads ask for them.
  void follow_steps(bool detect);
  /// Blocks until a step has ended; empty when nobody follows any more and all are taken.
  [[nodiscard]] std::optional<EndedStep> next_step();
  void stop_following();

 private:
  class Pending;
  class Use;

  [[nodiscard]] Runtime* enter();
  void leave() noexcept;
  [[nodiscard]] bool tries_itself(const Calls& calls) noexcept;
  void learn(bool could_itself) noexcept;
  void complete(Pending* pending);
  void finish(Pending* pending);
  void complete_on_this_thread();
  void watch(Runtime& runtime, const Calls& calls);
  void waited();
  void add_step(Runtime& runtime, bool detected);

  mutable std::mutex mutex_;
  std::condition_variable unused_;
  Runtime* runtime_ = nullptr;  // null: no session is open
  std::size_t users_ = 0;       // calls under way
  std::mutex finished_mutex_;
  std::condition_variable finished_some_;
  std::deque<Pending*> finished_;     // owned
  std::vector<std::thread> threads_;  // of completion; none until the first submit()
  bool stopping_ = false;
  // Relaxed, as a stale one costs one try more or less.
  std::atomic<int> credit_{0};  // of tries to carry out a collective on the calling thread
  std::atomic<std::uint32_t> small_calls_{0};
  std::mutex steps_mutex_;
  std::condition_variable stepped_;
  StepWatch watch_;
  std::deque<EndedStep> steps_;
  bool following_ = false;
  bool detecting_ = false;
};

/// The port of this process.
[[nodiscard]] Port& port();

}  // namespace ringtune::frameworks
