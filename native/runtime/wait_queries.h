// Wait queries: a caller asks which ranks an operation waits for; the round of a schedule or rank 0 answers.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "control/messages.h"
#include "control/request.h"

namespace ringtune {

/// Thread-safe; locks for a few instructions. Callers ask and wait; the driving thread takes the questions and answers
/// what it knows (Engine::answer_questions), which may come from rank 0 or from the stall reporter's thread.
class WaitQueries {
 public:
  /// `rank`: this one.
  explicit WaitQueries(int rank) noexcept : rank_(rank) {}

  // Callers.
  /// Blocks until `known`, when rank 0 has got the requests sent by now. The question's number, whose answer is to
  /// be taken; the driving thread is not woken.
  [[nodiscard]] std::uint32_t ask(const Request& request, Deadline known);
  /// Blocks. The ranks that the operation waits for; at the deadline what this rank has seen itself.
  [[nodiscard]] std::vector<int> answer_to(std::uint32_t number, Deadline deadline);

  // The driving thread.
  /// What has been asked since the last call.
  [[nodiscard]] std::vector<WaitQuery> take();
  /// What is known in case that nobody answers.
  void note_seen(std::uint32_t number, std::vector<int> missing);
  /// Any thread. Wakes the caller, if it still waits.
  void answered(std::uint32_t number, std::vector<int> missing);

 private:
  struct Answer {
    bool known = false;  // else what this rank has seen itself
    std::vector<int> missing;
  };

  const int rank_;
  std::mutex mutex_;  // guards what follows
  std::vector<WaitQuery> questions_;
  std::map<std::uint32_t, Answer> answers_;  // by question
  std::uint32_t last_ = 0;
  std::atomic<bool> asked_{false};               // there are questions
  std::atomic<std::uint32_t> answers_given_{0};  // futex word; release/acquire: the answer is under the mutex by then
};

}  // namespace ringtune
