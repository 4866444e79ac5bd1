// Questions that a rank asks others over the liveness connections. The monitor's thread takes and answers them: so a
// rank answers whatever its other threads do, and only one whose process stands still does not.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"

namespace ringtune {

/// Takes a question of another rank, on the monitor's thread; must not throw. `number`: for Fabric::reply, which may be
/// called at once or later.
using InquiryHandler = std::function<void(int from, std::uint32_t number, const Bytes& question)>;

/// The answers of all ranks by rank; none of those that gave none.
using Answers = std::vector<std::optional<Bytes>>;

/// Questions of this rank that wait for answers. Any thread.
class Inquiries {
 public:
  /// Opens a question to these ranks of a job of `size`: its number.
  [[nodiscard]] std::uint32_t open(std::span<const int> ranks, int size);
  void answered(std::uint32_t number, int rank, ByteView answer);
  /// A rank has left or is lost: it answers nothing any more.
  void gone(int rank);
  /// Blocks until all have answered or are gone, or the deadline, and closes the question.
  [[nodiscard]] Answers close(std::uint32_t number, Deadline deadline);
  /// Nobody waits any longer.
  void stop() noexcept;

 private:
  struct Question {
    std::set<int> open;
    Answers answers;
  };
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint32_t, Question> questions_;
  std::uint32_t last_ = 0;
  bool stopped_ = false;
};

}  // namespace ringtune
