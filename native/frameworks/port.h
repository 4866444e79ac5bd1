// Where a framework's handlers - custom calls of compiled code, kernels of a graph - reach the runtime of the open
// session: from any thread, without Python. What a framework asks for is done without telling who asks.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/home_process.h"
#include "base/result_memory.h"
#include "runtime/runtime.h"
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

/// Collectives that are submitted together, in this order: alone, or all members of a group.
using Calls = std::vector<Submission>;
using Outcomes = std::vector<Outcome>;  // of each of them
using Done = std::function<void(Outcomes)>;

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

  /// Blocks until all of them are done; the calling thread drives the runtime meanwhile. Does not throw: errors,
  /// also that no session is open, are outcomes.
  [[nodiscard]] Outcomes run(Calls calls);
  /// Returns at once. `done` is called once, on a thread of the port's own: it may run what the framework has waiting,
  /// and even ask for the next collective. What is refused at once - no session, an invalid argument - is told on the
  /// calling thread, before this returns. The memory of the calls must live until then.
  void submit(Calls calls, Done done);

 private:
  class Pending;
  class Use;

  [[nodiscard]] Runtime* enter();
  void leave() noexcept;
  void finish(Pending* pending);
  void complete_on_this_thread();

  mutable std::mutex mutex_;
  std::condition_variable unused_;
  Runtime* runtime_ = nullptr;  // null: no session is open
  std::size_t users_ = 0;       // calls under way
  std::mutex finished_mutex_;
  std::condition_variable finished_some_;
  std::deque<Pending*> finished_;     // owned
  std::vector<std::thread> threads_;  // of completion; none until the first submit()
  bool stopping_ = false;
};

/// The port of this process.
[[nodiscard]] Port& port();

}  // namespace ringtune::frameworks
