// The offset of this host's clock against rank 0's, from message round trips (Cristian's algorithm: of several
// exchanges the one with the shortest round trip is kept; half of it bounds the error).
#pragma once

#include <cstdint>
#include <optional>

namespace ringtune {

struct ClockSample {
  std::int64_t offset_ns = 0;  // rank 0's clock minus this clock
  std::int64_t error_ns = 0;   // the offset is off by at most this much
  std::int64_t at_ns = 0;      // on this clock: in the middle of the exchange, which need not be the last of its burst
};

/// A pure machine: says when to ask, takes answers, gives a sample after a burst.
class ClockSync {
 public:
  /// Starts a burst; the first question is due at once.
  void begin() noexcept {
    left_ = kBurst;
    best_round_trip_ns_ = -1;
  }
  [[nodiscard]] bool active() const noexcept { return left_ > 0; }
  /// An answer to the question sent at `asked_ns` came at `now_ns`. A sample when it ended the burst; else ask again.
  std::optional<ClockSample> answered(std::int64_t asked_ns, std::int64_t coordinator_ns,
                                      std::int64_t now_ns) noexcept {
    if (left_ == 0) return std::nullopt;
    const std::int64_t round_trip_ns = now_ns - asked_ns;
    if (best_round_trip_ns_ < 0 || round_trip_ns < best_round_trip_ns_) {
      best_round_trip_ns_ = round_trip_ns;
      const std::int64_t middle_ns = asked_ns + round_trip_ns / 2;
      best_ = {coordinator_ns - middle_ns, (round_trip_ns + 1) / 2, middle_ns};
    }
    return --left_ == 0 ? std::optional(best_) : std::nullopt;
  }

  static constexpr int kBurst = 8;

 private:
  int left_ = 0;
  std::int64_t best_round_trip_ns_ = -1;
  ClockSample best_;
};

}  // namespace ringtune
