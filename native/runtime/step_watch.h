// Where steps end in a training that nobody marks: what it does with the runtime repeats itself.
//
// The training thread's stream of tokens - operations by their names, and waits for results - comes to repeat a *pass*:
// the shortest run of tokens with a wait in it that was seen three times in a row, and long enough. Its begin is where
// the repetition began, so that ranks that run the same program agree on it. A step ends when the next pass begins. It
// is a step of the optimizer where that does the same things once; where a step is several passes (gradients reduced
// after each of several backwards), or two steps differ and repeat in turn, it is a fixed part or a multiple of one.
// What is compared with its like - the tuner's step times are - may be counted in either.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <thread>
#include <vector>

#include "collective/kind.h"

namespace ringtune {

/// A pure machine; one thread drives it.
class StepWatch {
 public:
  using Token = std::uint64_t;
  static constexpr Token kWait = 0;
  static constexpr std::size_t kRepeats = 3;
  static constexpr std::size_t kLeastTokens = 32;    // in which a pass must have repeated itself
  static constexpr std::size_t kMostTokens = 16384;  // looked back upon: a pass has at most a third of them
  /// Shorter passes are taken together: what is done at the end of a step takes time itself.
  static constexpr std::int64_t kLeastStepNs = 2'000'000;

  /// An operation as it will come again. Unnamed ones, which are counted, are known by their size.
  [[nodiscard]] static Token token_of(CollectiveKind kind, std::uint32_t process_set, std::string_view name,
                                      std::size_t elements) noexcept;

  /// An operation is about to be submitted. Whether a step has ended before it.
  [[nodiscard]] bool submitted(Token operation, std::int64_t now_ns);
  /// The same, where it needs no clock: an operation that was expected, in the middle of a pass. False: it was not
  /// taken.
  [[nodiscard]] bool goes_on(Token operation) noexcept {
    if (pass_.empty() || next_ == 0 || pass_[next_] != operation) return false;
    if (++next_ == pass_.size()) pass_over();
    return true;
  }
  /// A result was waited for. Several after one another count once.
  void waited();
  /// Tokens of a pass; 0 while none is known.
  [[nodiscard]] std::size_t pass() const noexcept { return pass_.size(); }
  [[nodiscard]] std::size_t passes_per_step() const noexcept { return per_step_; }

 private:
  struct Seen {
    Token token;
    std::int64_t at_ns;
  };
  void learn(Token operation, std::int64_t now_ns);
  [[nodiscard]] std::size_t shortest_pass(std::size_t& begin) const;
  [[nodiscard]] bool follow(Token operation, std::int64_t now_ns);
  [[nodiscard]] bool begins_step(std::int64_t now_ns);
  void take_together(std::int64_t taken_ns, std::size_t passes) noexcept;
  void time_passes(std::int64_t now_ns) noexcept;
  void pass_over() noexcept;
  [[nodiscard]] bool lost();
  void forget();

  std::vector<Seen> seen_;             // while no pass is known
  std::size_t look_at_ = 0;            // how many of these are looked through next
  std::size_t needed_ = kLeastTokens;  // more after each pass that did not last
  std::vector<Token> pass_;
  std::size_t next_ = 0;      // place in the pass
  std::size_t per_step_ = 1;  // passes
  std::size_t done_ = 0;      // passes since a step ended
  std::size_t begun_ = 0;     // passes since this one is known
  std::size_t time_at_ = 0;   // when they have been so many, the later half is timed
  std::int64_t timed_ns_ = 0;
  std::size_t lived_ = 0;   // tokens of all passes since this one is known
  std::size_t strays_ = 0;  // tokens that were not next, since a pass was over
  // Of passes with strays and of those without: a pass that leaves most of the time to others is a part of a step.
  bool strayed_ = false;
  std::int64_t begin_ns_ = 0;
  std::int64_t clean_ns_ = 0;
  std::int64_t strayed_ns_ = 0;
  std::size_t strayed_passes_ = 0;
};

/// The same for the thread that trains, with whom to tell. Watching that has begun or ended is seen by all threads.
class StepWatcher {
 public:
  /// The calling thread is watched from now on; what others do does not count. `ended` is called on it, from within the
  /// submission that begins the next step, and must not throw. It is kept as long as this.
  void begin(std::function<void()> ended);
  void end() noexcept { on_.store(false, std::memory_order_release); }

  void submitted(CollectiveKind kind, std::uint32_t process_set, std::string_view name, std::size_t elements) {
    if (mine()) take(StepWatch::token_of(kind, process_set, name, elements));
  }
  void submitted(StepWatch::Token operation) {
    if (mine()) take(operation);
  }
  void waited() {
    if (mine()) watch_.waited();
  }

 private:
  [[nodiscard]] bool mine() const noexcept {
    return on_.load(std::memory_order_acquire) && thread_ == std::this_thread::get_id();
  }
  void take(StepWatch::Token operation);

  std::atomic<bool> on_{false};  // release/acquire: the rest is written before
  std::thread::id thread_;
  std::function<void()> ended_;
  StepWatch watch_;
};

}  // namespace ringtune
