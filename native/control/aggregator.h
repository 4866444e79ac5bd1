// The middle of the tree of ready requests: a rank that others have as their parent. It collects the requests of its
// own worker and of its children, holds a tensor until all members below it have announced it, and sends its parent one
// message for all of them. So the coordinator gets as many messages as it has children, however many ranks there are.
//
// Holding costs no time: a tensor can only be decided when all have announced it. News that other ranks wait for (a
// stall report, a leaver, a join) are sent at once or after kHoldNs, with everything that is held then.
//
// Decisions pass here on their way down, so news that came from below before a decision was sent without knowing it:
//   - a failed tensor: the ranks fail what they have announced when they see the decision, so it is not passed on;
//   - the begin of a schedule: what was announced belongs to the schedule, as in Coordinator::announced;
//   - an evicted number stays known until all ranks below have processed the eviction.
// A pure machine: no clock, socket or thread inside; one thread drives it.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "control/messages.h"
#include "control/tensor_key.h"
#include "control/tree.h"

namespace ringtune {

class Aggregator {
 public:
  /// `place` is that of `rank`, which is not 0 and has children.
  Aggregator(int rank, const TreePlace& place);

  /// News of this rank itself or of a child. Throws Protocol when they contradict what was said before.
  void announced(int from, const WorkerNews& news, std::int64_t now_ns);
  /// Decisions on their way down. Call before the own worker gets them.
  void decided(const Decisions& decisions);
  /// News for the parent, when they are due.
  [[nodiscard]] std::optional<WorkerNews> take(std::int64_t now_ns);
  /// When take() will have news without a further event; kNever when never.
  [[nodiscard]] std::int64_t next_wake_ns() const noexcept;
  /// All ranks below have left, or have announced that after rank 0 has: no rank needs this one any more.
  [[nodiscard]] bool free_to_go() const noexcept;
  /// Throws InvariantError when the tables contradict each other (tests).
  void validate_state() const;

  /// How long a tensor that only some ranks below have announced is held back from the parent: short beside the times
  /// of stall reports, long beside the differences between ranks that compute alike.
  static constexpr std::int64_t kHoldNs = 50'000'000;
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

 private:
  /// A tensor that some ranks below have reported and that is not decided.
  struct Entry {
    RankSet announced_by;          // the ranks that have announced it
    std::vector<Variant> in_full;  // not sent to the parent yet ...
    RankSet by_number;             // ... nor this, by `number`
    std::uint32_t number = TensorRef::kUncached;
    std::int64_t held_since_ns = 0;
    bool held = false;   // it stands in held_
    bool going = false;  // all that can be expected have reported it, or it is not to wait for them
  };
  using Entries = std::unordered_map<TensorKey, Entry, TensorKeyHash>;
  using Members = std::shared_ptr<const RankSet>;
  struct Number {
    TensorKey key;
    Members members;  // below, of the set that the tensor belongs to
  };
  struct Child {
    RankSet ranks;
    std::uint64_t acknowledged = 0;
    bool waiting = false;  // it said last that a caller is blocked
  };

  void take_over(int from, const WorkerNews& news, std::int64_t now_ns);
  [[nodiscard]] const Number& number(int from, std::uint32_t id) const;
  void add_numbered(std::uint32_t id, const RankSet& ranks, std::uint64_t seen, std::int64_t now_ns);
  void add_in_full(const Variant& variant, std::uint64_t seen, std::int64_t now_ns);
  [[nodiscard]] Entry* count_in(const TensorKey& key, const RankSet& ranks, std::uint64_t seen, std::int64_t now_ns);
  [[nodiscard]] bool goes(const TensorKey& key, const Entry& entry) const;
  void note(const BatchDecision& batch);
  void note(const FailureDecision& failure);
  void note(const SetDecision& change);
  void note(const LeftDecision& left);
  void begin_schedule();
  void forget(const TensorKey& key);
  [[nodiscard]] std::uint64_t acknowledged_below() const;
  void acknowledge();
  [[nodiscard]] bool all_goes(std::int64_t now_ns) const;
  [[nodiscard]] bool wait_goes() const noexcept;
  [[nodiscard]] bool anyone_waits() const noexcept;
  [[nodiscard]] std::int64_t hold_ends_ns() const noexcept;
  void write(const TensorKey& key, Entry& entry, WorkerNews& news) const;

  int rank_;
  RankSet below_;                  // this rank and all below it
  std::map<int, Child> children_;  // by rank, this rank itself among them
  std::map<std::uint32_t, Members> members_;
  Entries entries_;
  std::vector<Entries::value_type*> held_;  // not sent to the parent, in the order in which they came
  bool some_go_ = false;                    // of held_
  std::unordered_map<std::uint32_t, Number> numbers_;
  std::deque<std::pair<std::uint64_t, std::uint32_t>> evicted_;         // numbers, by the decisions that evicted them
  std::unordered_map<TensorKey, std::uint64_t, TensorKeyHash> failed_;  // sequence of the decision
  std::deque<std::pair<std::uint64_t, TensorKey>> failures_;
  std::vector<Variant> joins_;  // not sent yet
  RankSet joined_;
  RankSet leaving_;                    // not sent yet
  std::vector<Departure> departures_;  // likewise, as they came
  RankSet sent_leaving_;               // sent, and perhaps not decided
  std::int64_t leaving_since_ns_ = 0;
  RankSet left_;
  std::map<std::uint32_t, StepTally> steps_;
  std::uint32_t left_schedule_ = 0;  // not sent yet
  std::uint32_t sent_schedule_ = 0;
  std::uint64_t schedule_rounds_ = 0;
  std::uint64_t schedule_sequence_ = 0;  // of the decisions that began the last schedule
  std::uint64_t seen_ = 0;
  std::uint64_t acknowledged_ = 0;  // sent last
  bool sent_waiting_ = false;
};

}  // namespace ringtune
