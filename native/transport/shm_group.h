// Shared memory of the ranks of one group on one host. Every member owns one region, which it writes and all map.
//
// Collectives run in *rounds*. In a round every member posts a token (what it believes the round to be) and numbers of
// *pieces*: data that it has put into its slots, and data of its peers that it has taken. Every wait is for such a
// number of a peer to grow, and numbers only grow: round << 24 | count.
//
// A member that has posted round r is through with round r - 1, which bounds how far ahead a member may be. Slots come
// in two sets that rounds use in turn, so a member takes part in round r + 1 only when all have posted r; votes against
// a round touch no slot and may run kShmTokens - 1 rounds ahead. A large message after a large one stays in the same
// set, and begins when all are through with the former.
//
// The owner of a slot (SlotOwnership) matters for speed alone: a core writes fastest the lines that it has read last.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "transport/abortable.h"
#include "transport/affinity_balancer.h"
#include "transport/core_latency.h"
#include "transport/link_table.h"
#include "transport/shm_region.h"

namespace ringtune {

/// Who writes the slots of a round.
enum class SlotOwnership : std::uint8_t {
  kOwn,              // each member its own; the others read them
  kAlternating,      // of two members: the one that has read the slot last
  kReturnedInPlace,  // of two members: each its own; the other one reads it and leaves its owner's result there
};

struct ShmGroupOptions {
  std::size_t slot_bytes = 512 << 10;
  std::size_t slots = 4;  // of each of the two sets
  // How long a wait spins before it sleeps; 0: members take turns on cores. The same on all members.
  std::int64_t spin_ns = 0;
  static constexpr std::int64_t kAsCoresAllow = -1;  // decided when the members meet
  std::int64_t idle_timeout_ns = 0;                  // a wait that lasts longer throws Timeout; 0 = never
  std::int64_t stall_ns = 0;  // a wait that lasts longer calls on_stall, again and again; 0 = never
  std::function<void(const std::vector<int>& missing, std::int64_t waited_ns)> on_stall;  // positions in the group
  std::optional<CoreLatency> distance;                                                    // instead of the measured one
  std::optional<bool> changes_owner;  // instead of what processor and distance say; the same on all members
};

/// Owns the regions' mappings. One thread at a time, except abort(). Waiting methods block; they throw PeerLost after
/// abort() and Timeout after the idle timeout.
class ShmGroup final : public Abortable {
 public:
  /// `regions` and `ranks` (for messages and PeerLost) by position in the group.
  ShmGroup(int position, std::vector<ShmRegion> regions, std::vector<int> ranks, ShmGroupOptions options);
  ~ShmGroup() override = default;

  [[nodiscard]] int position() const noexcept { return position_; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(regions_.size()); }
  [[nodiscard]] std::size_t slot_bytes() const noexcept { return options_.slot_bytes; }
  [[nodiscard]] std::size_t slots() const noexcept { return options_.slots; }
  /// Number of the round that was begun last, the same on all members.
  [[nodiscard]] std::uint64_t round() const noexcept { return round_; }
  [[nodiscard]] bool oversubscribed() const noexcept { return options_.spin_ns == 0; }
  /// Slot that a member writes for a piece of this round.
  [[nodiscard]] std::byte* slot(int member, std::size_t piece) const noexcept;
  /// Whether slots may change hands in this round; the same for all members.
  [[nodiscard]] bool changes_owner() const noexcept;
  /// After begin_round(): makes room in the slots of this round for pieces of so many bytes, of a message of so many;
  /// the same for all members. May choose other slots, and blocks until all members are through with their old
  /// contents. Needs release_slots() after the last piece. With kReturnedInPlace, a member that has read the result in
  /// its slot is the last one to have touched it, and need not wait before it writes there again.
  void use_slots_for(std::size_t piece, std::size_t message, SlotOwnership use);
  /// After begin_round(): the bytes that go through the slots in this round, as far as this member knows.
  void account_bytes(std::size_t bytes) noexcept { moved_ += bytes; }
  /// This member needs nothing any more from the slots of this round.
  void release_slots() noexcept;
  /// The distance from the first member to the furthest one; the same for all members in this round. Two members that
  /// take turns on cores count as on the same core.
  [[nodiscard]] CoreLatency distance() const noexcept { return distance_; }

  /// Begins a round with this token; the others see nothing before publish(kPosted, ...). Blocks only after a round
  /// that was not agreed on, until all members have posted that one.
  void begin_round(std::uint64_t token);
  /// Votes against the round that comes next, which is over for this member at once. Blocks only when a member is
  /// kShmTokens - 1 rounds behind.
  void decline_round();
  /// After publish(kPosted, ...): blocks until all members have posted this round, or one is known to have declined it
  /// or to have come with another token. False then, for all members. No answer at the deadline: ask again.
  [[nodiscard]] std::optional<bool> agreed(Deadline deadline);
  /// Members (positions) that have not posted this round yet.
  [[nodiscard]] std::vector<int> absent() const;
  /// Between rounds: whether a member has posted the next one, and so waits for this one.
  [[nodiscard]] bool awaited() const noexcept;
  /// The rank that this one had to wait for last before the round was agreed on, which is the one that came last; -1
  /// when all had come before.
  [[nodiscard]] int awaited_rank() const noexcept { return awaited_rank_; }
  /// Sets the own counter to `count` pieces of this round and wakes members that wait for it.
  void publish(ShmCounter counter, std::size_t count) noexcept;
  /// Blocks until the member's counter has `count` pieces in this round, or it is in a later one. So a member must
  /// publish everything that a peer may wait for before it leaves the round.
  void wait(int member, ShmCounter counter, std::size_t count);
  void wait_all(ShmCounter counter, std::size_t count);

  /// Any thread: every pending and later wait throws PeerLost(rank, reason).
  void abort(const std::string& reason) noexcept override;

  static constexpr std::uint64_t kDeclined = ~std::uint64_t{0};

 private:
  [[nodiscard]] std::atomic<std::uint64_t>& counter_of(int member, ShmCounter counter) const noexcept;
  [[nodiscard]] std::atomic<std::uint64_t>& token_of(int member) const noexcept;
  [[nodiscard]] std::atomic<DistanceNotice>& notice_in(std::uint64_t round) const noexcept;
  [[nodiscard]] bool measures_next() noexcept;
  void enter_round(std::uint64_t token, std::uint64_t lead);
  void note_core() noexcept;
  void spread_out();
  void keep_set();
  void turn_places(std::size_t piece) noexcept;
  void wait_for(int member, ShmCounter counter, std::uint64_t value);
  bool spin(const std::atomic<std::uint64_t>& counter, std::uint64_t value);
  bool sleep_for(int member, ShmCounter counter, std::uint64_t value, Deadline deadline = Deadline::never());
  [[nodiscard]] bool anyone_against() const noexcept;
  void report(ShmCounter counter, std::uint64_t value, std::int64_t waited_ns) const;

  int position_;
  std::vector<ShmRegion> regions_;
  std::vector<int> ranks_;
  ShmGroupOptions options_;
  std::uint64_t round_ = 0;
  int awaited_rank_ = -1;
  DistanceMeter meter_;
  CoreLatency distance_ = CoreLatency::kSameCore;
  bool measured_ = false;   // in this round
  std::size_t moved_ = 0;   // bytes, since it was measured last
  std::size_t place_ = 0;   // bytes from the begin of a slot
  std::uint64_t turn_ = 0;  // of this round: which set of slots, and who writes them
  SlotOwnership use_ = SlotOwnership::kOwn;
  std::size_t first_ = 0;   // slot of the first piece
  std::size_t pieces_ = 0;  // of this round, where they go on around the slots
  bool keeps_set_ = false;
  struct {
    std::uint64_t round = 0;
    std::uint64_t turn = 0;
    SlotOwnership use = SlotOwnership::kOwn;
    std::size_t next = 0;  // slot of the piece after the last
    bool keeps_set = false;
  } agreed_;                   // the last round that was agreed on
  std::uint64_t settled_ = 0;  // the last round that all members are known to have posted
  AffinityBalancer spread_;
  std::vector<int> cores_;  // of the members, as seen at the last look
  AbortState aborted_;
};

}  // namespace ringtune
