// How long the cycle thread leaves what a schedule's steps submit to the caller who is going to wait for it.
//
// Where every core of the host computes, an exchange in the background gains nothing and costs: it takes turns with the
// training threads, in each process at other times, so that its halves wait for one another, and it drives the model's
// data out of the caches. Callers that submit a step's gradients wait for them in the end, and repeat themselves: the
// cycle thread holds still about as long as they took to come so far. It goes ahead when that time is over, when a
// caller asks, and when another rank waits; a caller that never waits is never waited for.
#pragma once

#include <algorithm>
#include <cstdint>

namespace ringtune {

/// Whether a schedule's batches go ahead in the background.
enum class Overlap : std::uint8_t { kAuto = 0, kAlways, kNever };  // auto: unless the host has no core to spare

/// A pure machine; one thread drives it. A *pass* is one round of the schedule's batches, so a step of the training;
/// its caller may come when it is over already.
class OverlapPolicy {
 public:
  static constexpr std::int64_t kMarginNs = 20'000'000;
  static constexpr std::int64_t kLeastHoldOffNs = 2'000'000;
  static constexpr std::int64_t kLongestNs = 10'000'000'000;  // longer steps are not held back

  /// Something is in flight in this pass, which begins with that if it is another one than before.
  void in_flight(std::uint64_t pass, std::int64_t now_ns) noexcept {
    if (pass == pass_) return;
    pass_ = pass;
    if (!asked_) usual_ns_ = kNone;  // nobody has come for the last one
    asked_ = hurried_ = false;
    since_ns_ = now_ns;
  }
  /// When a caller first waited for something or asked how it is; before the pass does not count.
  void asked(std::int64_t when_ns) noexcept {
    if (asked_ || when_ns < since_ns_) return;
    asked_ = true;
    const std::int64_t taken_ns = when_ns - since_ns_;
    usual_ns_ = taken_ns <= kLongestNs ? taken_ns : kNone;
  }
  /// Another rank needs the pass to go ahead.
  void hurry() noexcept { hurried_ = true; }
  [[nodiscard]] std::uint64_t pass() const noexcept { return pass_; }
  /// How long this rank waits in a round before it wakes the ranks that are missing: they usually come in a moment.
  [[nodiscard]] std::int64_t hold_off_ns() const noexcept { return std::max(kLeastHoldOffNs, usual_ns_ / 8); }
  /// Until when to hold the pass back; 0 = not at all.
  [[nodiscard]] std::int64_t until_ns() const noexcept {
    if (usual_ns_ == kNone || asked_ || hurried_) return 0;
    return since_ns_ + 2 * usual_ns_ + kMarginNs;
  }

 private:
  static constexpr std::int64_t kNone = -1;
  std::uint64_t pass_ = ~std::uint64_t{0};
  std::int64_t since_ns_ = 0;      // the pass
  std::int64_t usual_ns_ = kNone;  // from its begin to the first caller who asks
  bool asked_ = true;
  bool hurried_ = false;
};

}  // namespace ringtune
