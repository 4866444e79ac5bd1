#include "transport/shm_group.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/futex.h"
#include "base/sleep.h"
#include "trace/piece_log.h"
#include "transport/pause.h"
#include "transport/shm_thresholds.h"

namespace ringtune {
namespace {

constexpr std::int64_t kVoteSliceNs = 5'000'000;
// The distance is measured once in so many rounds, since a virtual machine's cores move as time passes.
constexpr std::uint64_t kRoundsOfDistance = 64;
constexpr std::size_t kPlaceAlignment = 64;
constexpr std::size_t kSpareCores = 2;  // for a member
constexpr int kYields = 64;             // of a rank that shares its core, before it sleeps

// 40 bits of rounds last for 12 days of one round in a microsecond; 24 bits of pieces for 64 GiB of the smallest ones.
constexpr int kCountBits = 24;
constexpr std::uint64_t kEverything = (std::uint64_t{1} << kCountBits) - 1;  // pieces
constexpr std::uint64_t value_of(std::uint64_t round, std::uint64_t count) noexcept {
  return round << kCountBits | count;
}
// What a sleeper waits for, as one word; 0 = nobody sleeps.
constexpr std::uint32_t sleep_mark(int member, ShmCounter counter) noexcept {
  return static_cast<std::uint32_t>(static_cast<std::size_t>(member) * kShmCounters +
                                    static_cast<std::size_t>(counter) + 1);
}

}  // namespace

ShmGroup::ShmGroup(int position, std::vector<ShmRegion> regions, std::vector<int> ranks, ShmGroupOptions options)
    : position_(position), regions_(std::move(regions)), ranks_(std::move(ranks)), options_(std::move(options)) {
  RINGTUNE_CHECK_EQ(regions_.size(), ranks_.size());
  for (const ShmRegion& region : regions_) {
    RINGTUNE_CHECK_EQ(region.header().slots, options_.slots);
    RINGTUNE_CHECK_EQ(region.header().slot_bytes, options_.slot_bytes);
  }
}

std::byte* ShmGroup::slot(int member, std::size_t piece) const noexcept {
  const std::size_t index = turn_ % 2 * options_.slots + (first_ + piece) % options_.slots;
  std::size_t owner = static_cast<std::size_t>(member);
  if (use_ == SlotOwnership::kAlternating)
    owner ^= (turn_ / 2 + piece / options_.slots) % 2;  // each set has every second round
  return regions_[owner].slot(index) + place_;
}

bool ShmGroup::changes_owner() const noexcept {
  if (size() != 2) return false;
  if (options_.changes_owner) return *options_.changes_owner;
  if (oversubscribed()) return false;
  return distance_ != CoreLatency::kSameCore || regions_.front().header().changes_owner_in_one_core != 0;
}

void ShmGroup::use_slots_for(std::size_t piece, std::size_t message, SlotOwnership use) {
  use_ = use;
  if (use == SlotOwnership::kReturnedInPlace) {
    pieces_ = (message + piece - 1) / piece;
    if (agreed_.use == use && round_ == agreed_.round + 1) {
      // The round goes on around the same slots, but not in that of the last piece: a line is written faster when both
      // cores' first-level caches have evicted it.
      turn_ = agreed_.turn;
      first_ = agreed_.next;
    }
    return;
  }
  keeps_set_ = message >= regions_.front().header().least_kept;
  if (keeps_set_) {
    keep_set();
  } else if (use == SlotOwnership::kOwn) {
    turn_places(piece);
  }
}

/// Large messages one after the other stay in one set of slots, because two sets would leave the tensors less of the
/// caches.
void ShmGroup::keep_set() {
  if (!agreed_.keeps_set || round_ != agreed_.round + 1) return;
  for (int member = 0; member < size(); ++member) {
    if (member != position_) wait_for(member, ShmCounter::kTaken, value_of(agreed_.round, kEverything));
  }
  turn_ = agreed_.turn;
}

/// Two members on cores that share a cache use the places of a slot in turn: a line that the other core has just read
/// is written faster once that core's own cache has evicted it.
void ShmGroup::turn_places(std::size_t piece) noexcept {
  if (size() != 2) return;
  const std::size_t place = (piece + kPlaceAlignment - 1) / kPlaceAlignment * kPlaceAlignment;
  if (place < kShmThresholds.least_piece_in_turn || place > options_.slot_bytes ||
      distance_ != CoreLatency::kSharedCache)
    return;
  place_ = round_ / 2 % (options_.slot_bytes / place) * place;  // each set of slots has every second round
}

void ShmGroup::release_slots() noexcept {
  if (keeps_set_) publish(ShmCounter::kTaken, kEverything);
}

/// The first member measures for all: the time to write lines that all others have read is the distance to the furthest
/// one. Two members that take turns on cores count as on one core, where they mostly are.
bool ShmGroup::measures_next() noexcept {
  if (options_.distance || size() == 1 || (size() == 2 && oversubscribed())) return false;
  if (round_ % kRoundsOfDistance != 1 && moved_ < kShmThresholds.distance_measured_every) return false;
  moved_ = 0;
  return true;
}

std::atomic<std::uint64_t>& ShmGroup::counter_of(int member, ShmCounter counter) const noexcept {
  ShmRegion::Header& header = regions_[static_cast<std::size_t>(member)].header();
  if (counter == ShmCounter::kPosted) return header.round.posted;
  return header.counters[static_cast<std::size_t>(counter) - 1].value;
}

std::atomic<std::uint64_t>& ShmGroup::token_of(int member) const noexcept {
  return regions_[static_cast<std::size_t>(member)].header().round.tokens[round_ % kShmTokens];
}

std::atomic<DistanceNotice>& ShmGroup::notice_in(std::uint64_t round) const noexcept {
  return regions_.front().header().round.notices[round % kShmTokens];
}

void ShmGroup::enter_round(std::uint64_t token, std::uint64_t lead) {
  const std::uint64_t next = round_ + 1;
  if (next > settled_ + lead) {
    const std::uint64_t needed = next - lead;
    for (int member = 0; member < size(); ++member) {
      if (member != position_) wait_for(member, ShmCounter::kPosted, value_of(needed, 0));
    }
    settled_ = needed;
  }
  round_ = next;
  awaited_rank_ = -1;
  // relaxed: published by the counter's store in publish().
  token_of(position_).store(token, std::memory_order_relaxed);
  if (position_ != 0) return;
  notice_in(round_).store({options_.distance.value_or(meter_.distance()), measures_next()}, std::memory_order_relaxed);
}

/// Tells the others where this member runs. relaxed: a hint.
void ShmGroup::note_core() noexcept {
  std::atomic<std::int32_t>& own = regions_[static_cast<std::size_t>(position_)].header().place.core;
  const int core = current_core();
  if (own.load(std::memory_order_relaxed) != core) own.store(core, std::memory_order_relaxed);
}

/// Moves this member to another core if that makes the members even. It applies to members that take turns on cores,
/// and to members whose waits last until they sleep: something else may have pushed them onto one core, where each
/// wakes the other. The kernel leaves them so, and every call takes as long as a wait spins.
void ShmGroup::spread_out() {
  note_core();
  const std::int64_t now = now_ns();
  if (!spread_.due(now)) return;
  cores_.clear();
  for (const ShmRegion& region : regions_) {
    cores_.push_back(region.header().place.core.load(std::memory_order_relaxed));
  }
  const std::optional<int> roomier = spread_.look(now, cores_, position_, usable_cores);
  if (roomier) go_to_core(*roomier);
}

void ShmGroup::begin_round(std::uint64_t token) {
  oversubscribed() ? spread_out() : note_core();
  enter_round(token, 1);
  place_ = 0;
  first_ = 0;
  pieces_ = 0;
  use_ = SlotOwnership::kOwn;
  keeps_set_ = false;
  // Counted from the last round whose slots anybody read, so that all members are in the same slots.
  turn_ = agreed_.turn + (round_ - agreed_.round);
  // The first member's notice of the round before, which all have posted. Relaxed: it is read after the acquire of that
  // member's counter, and overwritten only when this member has posted more rounds.
  const DistanceNotice notice = round_ > 1 ? notice_in(round_ - 1).load(std::memory_order_relaxed) : DistanceNotice{};
  distance_ = notice.distance;
  measured_ = notice.measured;
  if (measured_ && position_ != 0) read_lines(regions_.front().distance_lines());
}

void ShmGroup::decline_round() {
  enter_round(kDeclined, kShmTokens - 1);
  publish(ShmCounter::kPosted, 0);
}

/// Whether some member has posted this round with another token than this one.
bool ShmGroup::anyone_against() const noexcept {
  // Relaxed: this member wrote it.
  const std::uint64_t own = token_of(position_).load(std::memory_order_relaxed);
  for (int member = 0; member < size(); ++member) {
    if (member == position_) continue;
    const bool posted = counter_of(member, ShmCounter::kPosted).load(std::memory_order_acquire) >= value_of(round_, 0);
    // Relaxed: it is read after the acquire of the counter. It is the token of this round, since the member overwrites
    // it only when this one has posted the next round.
    if (posted && token_of(member).load(std::memory_order_relaxed) != own) return true;
  }
  return false;
}

std::vector<int> ShmGroup::absent() const {
  std::vector<int> members;
  for (int member = 0; member < size(); ++member) {
    if (member == position_) continue;
    if (counter_of(member, ShmCounter::kPosted).load(std::memory_order_acquire) < value_of(round_, 0)) {
      members.push_back(member);
    }
  }
  return members;
}

bool ShmGroup::awaited() const noexcept {
  const std::uint64_t next = value_of(round_ + 1, 0);
  for (int member = 0; member < size(); ++member) {
    if (member == position_) continue;
    if (counter_of(member, ShmCounter::kPosted).load(std::memory_order_acquire) >= next) return true;
  }
  return false;
}

std::optional<bool> ShmGroup::agreed(Deadline deadline) {
  const std::uint64_t value = value_of(round_, 0);
  for (int member = 0; member < size(); ++member) {
    if (member == position_) continue;
    const std::atomic<std::uint64_t>& word = counter_of(member, ShmCounter::kPosted);
    if (word.load(std::memory_order_acquire) >= value) continue;
    awaited_rank_ = ranks_[static_cast<std::size_t>(member)];
    if (spin(word, value)) continue;
    // The member that a sleeper waits for wakes it. The vote of another member may decide earlier, so with more than
    // two members the sleeper looks now and then.
    while (!anyone_against()) {
      const bool many = size() > 2 && !deadline.is_never();
      const Deadline slice = many ? earlier(deadline, Deadline::after(kVoteSliceNs)) : deadline;
      if (sleep_for(member, ShmCounter::kPosted, value, slice)) break;
      if (deadline.expired() && !anyone_against()) return std::nullopt;
    }
    if (anyone_against()) return false;  // no member will write an output
  }
  if (anyone_against()) return false;
  settled_ = round_;
  agreed_ = {.round = round_,
             .turn = turn_,
             .use = use_,
             .next = (first_ + pieces_) % options_.slots,
             .keeps_set = keeps_set_};
  if (measured_ && position_ == 0) meter_.time(regions_.front().distance_lines());
  return true;
}

void ShmGroup::publish(ShmCounter counter, std::size_t count) noexcept {
  const std::uint64_t value = value_of(round_, count);
  // Sequentially consistent: ordered before the look at the peers' `sleeps`, as their store of it is ordered before
  // their last look at the counter. Either this member sees that a peer sleeps, or the peer sees the new value.
  counter_of(position_, counter).store(value, std::memory_order_seq_cst);
  const std::uint32_t mark = sleep_mark(position_, counter);
  for (int member = 0; member < size(); ++member) {
    if (member == position_) continue;
    auto& waiter = regions_[static_cast<std::size_t>(member)].header().waiter;
    if (waiter.sleeps.load(std::memory_order_seq_cst) != mark) [[likely]]
      continue;
    // relaxed: stored before the mark. A greater value belongs to a later sleep, which has looked at the counter since.
    if (waiter.value.load(std::memory_order_relaxed) > value) continue;
    waiter.bell.fetch_add(1, std::memory_order_release);
    futex_wake(waiter.bell, kFutexWakeAll, FutexScope::kShared);
  }
}

void ShmGroup::wait(int member, ShmCounter counter, std::size_t count) {
  wait_for(member, counter, value_of(round_, count));
}

void ShmGroup::wait_all(ShmCounter counter, std::size_t count) {
  for (int member = 0; member < size(); ++member) {
    if (member != position_) wait(member, counter, count);
  }
}

void ShmGroup::wait_for(int member, ShmCounter counter, std::uint64_t value) {
  const std::atomic<std::uint64_t>& word = counter_of(member, counter);
  // Acquire: a member that sees the number sees the data that it counts.
  if (word.load(std::memory_order_acquire) >= value) [[likely]]
    return;
  const WaitTimer timer(ranks_[static_cast<std::size_t>(member)]);
  if (!spin(word, value)) (void)sleep_for(member, counter, value);
}

bool ShmGroup::spin(const std::atomic<std::uint64_t>& counter, std::uint64_t value) {
  if (options_.spin_ns == 0) {
    // The peer may need this very core: let it run. The kernel hands over in about a microsecond.
    about_to_sleep();
    spread_out();
    for (int i = 0; i < kYields; ++i) {
      ::sched_yield();
      if (counter.load(std::memory_order_acquire) >= value) return true;
    }
    return false;
  }
  const std::int64_t until_ns = now_ns() + options_.spin_ns;
  do {
    for (int i = 0; i < 64; ++i) {
      if (counter.load(std::memory_order_acquire) >= value) return true;
      pause_cpu();
    }
  } while (now_ns() < until_ns);
  // Where there are cores to spare the kernel wakes no thread on a busy one.
  if (usable_cores().count() > kSpareCores * regions_.size()) return false;
  spread_out();
  return counter.load(std::memory_order_acquire) >= value;
}

bool ShmGroup::sleep_for(int member, ShmCounter counter, std::uint64_t value, Deadline deadline) {
  const std::atomic<std::uint64_t>& word = counter_of(member, counter);
  const std::uint32_t mark = sleep_mark(member, counter);
  auto& waiter = regions_[static_cast<std::size_t>(position_)].header().waiter;
  const std::int64_t begin_ns = now_ns();
  const std::int64_t give_up_ns =
      options_.idle_timeout_ns > 0 ? begin_ns + options_.idle_timeout_ns : Deadline::never().when_ns();
  std::int64_t next_report_ns = options_.stall_ns > 0 ? begin_ns + options_.stall_ns : Deadline::never().when_ns();
  while (true) {
    aborted_.check(ranks_[static_cast<std::size_t>(member)]);
    const std::uint32_t seen = waiter.bell.load(std::memory_order_acquire);
    waiter.value.store(value, std::memory_order_relaxed);  // published by the mark
    waiter.sleeps.store(mark, std::memory_order_seq_cst);
    const bool arrived = word.load(std::memory_order_seq_cst) >= value;
    if (!arrived && !aborted_.given()) {
      const Deadline slice = earlier(deadline, earlier(Deadline::at(give_up_ns), Deadline::at(next_report_ns)));
      (void)futex_wait(waiter.bell, seen, slice, FutexScope::kShared);
    }
    waiter.sleeps.store(0, std::memory_order_relaxed);
    if (arrived) return true;
    if (deadline.expired()) return false;
    const std::int64_t now = now_ns();
    if (now >= give_up_ns) {
      throw Timeout("rank " + std::to_string(ranks_[static_cast<std::size_t>(member)]) +
                    " has not moved in a collective for longer than the idle timeout");
    }
    if (now >= next_report_ns) {
      next_report_ns = now + options_.stall_ns;
      report(counter, value, now - begin_ns);
    }
  }
}

void ShmGroup::report(ShmCounter counter, std::uint64_t value, std::int64_t waited_ns) const {
  if (!options_.on_stall) return;
  std::vector<int> missing;
  for (int other = 0; other < size(); ++other) {
    if (other != position_ && counter_of(other, counter).load(std::memory_order_acquire) < value) {
      missing.push_back(other);
    }
  }
  if (!missing.empty()) options_.on_stall(missing, waited_ns);
}

void ShmGroup::abort(const std::string& reason) noexcept {
  aborted_.give(reason);
  auto& waiter = regions_[static_cast<std::size_t>(position_)].header().waiter;
  waiter.bell.fetch_add(1, std::memory_order_release);
  futex_wake(waiter.bell, kFutexWakeAll, FutexScope::kShared);
}

}  // namespace ringtune
