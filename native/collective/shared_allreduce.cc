#include "collective/shared_allreduce.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "device/cpu_kernels.h"
#include "trace/piece_log.h"
#include "transport/shm_thresholds.h"

namespace ringtune {
namespace {

constexpr std::size_t kPartAlignment = 64;  // parts of different members do not share cache lines
constexpr int kMostMembers = 1024;

/// Walks fragments as one stream of elements.
class FragmentCursor {
 public:
  explicit FragmentCursor(std::span<const Fragment> fragments) : fragments_(fragments) {}

  [[nodiscard]] bool several() const noexcept { return fragments_.size() > 1; }
  /// The next walk begins at this element of the stream. Fast where the last walk ended near it.
  void seek(std::size_t element) {
    while (element < begin_) begin_ -= fragments_[--index_].count;
    while (element >= begin_ + fragments_[index_].count) begin_ += fragments_[index_++].count;
    offset_ = element - begin_;
  }

  /// Calls `visit(fragment, first element in it, elements, elements of the stream passed in this call)` for the next
  /// `count` elements.
  template <typename Visit>
  void walk(std::size_t count, Visit&& visit) {
    std::size_t passed = 0;
    while (passed < count) {
      const Fragment& fragment = fragments_[index_];
      const std::size_t some = std::min(count - passed, fragment.count - offset_);
      if (some > 0) visit(fragment, offset_, some, passed);
      passed += some;
      offset_ += some;
      if (offset_ == fragment.count) {
        begin_ += fragment.count;
        ++index_;
        offset_ = 0;
      }
    }
  }

 private:
  std::span<const Fragment> fragments_;
  std::size_t index_ = 0;
  std::size_t begin_ = 0;   // of that fragment in the stream
  std::size_t offset_ = 0;  // in that fragment
};

class SharedAllreduce final : public ShmRound {
 public:
  SharedAllreduce(ShmGroup& shm_group, std::span<const Fragment> fragments, const SharedRound& round)
      : ShmRound(shm_group),
        round_(round),
        wire_(round.wire.value_or(round.dtype)),
        element_(size_of(wire_)),
        tensor_element_(size_of(round.dtype)),
        packing_(fragments),
        reducing_(fragments),
        sharing_(fragments),
        spreading_(fragments) {
    for (const Fragment& fragment : fragments) total_ += fragment.count;
    post();
  }

  void finish() override { in_parts_ ? run_in_parts() : run_flat(); }

 private:
  void post() {
    group_.begin_round(round_.token);
    use_ = slot_use();
    in_parts_ = use_ == SlotOwnership::kReturnedInPlace || reduces_in_parts();
    piece_ = piece_elements();
    pieces_ = (total_ + piece_ - 1) / piece_;
    const std::size_t bytes = total_ * element_;
    backwards_ =
        use_ == SlotOwnership::kReturnedInPlace && bytes <= kShmThresholds.most_backwards && group_.round() % 2 == 1;
    fetches_ = use_ == SlotOwnership::kReturnedInPlace && (packing_.several() || bytes > kShmThresholds.most_backwards);
    group_.use_slots_for(std::min(piece_, total_) * element_, bytes, use_);
    group_.account_bytes(bytes);
    streams_ = use_ == SlotOwnership::kOwn && group_.distance() == CoreLatency::kApart &&
               kShmThresholds.least_streamed <= bytes;
    pack_next();  // together with the vote
  }

  /// Whether the tensors are cast in the slots. Sums that are copied out of them are then rounded twice.
  [[nodiscard]] bool casts() const noexcept { return wire_ != round_.dtype; }
  [[nodiscard]] SlotOwnership slot_use() const noexcept {
    if (!group_.changes_owner()) return SlotOwnership::kOwn;
    return total_ * element_ < kShmThresholds.least_returned_in_place || casts() ? SlotOwnership::kAlternating
                                                                                 : SlotOwnership::kReturnedInPlace;
  }
  [[nodiscard]] bool reduces_in_parts() const noexcept {
    const std::size_t bytes = total_ * element_;
    if (group_.size() > 2)
      return bytes > (group_.oversubscribed() ? kShmThresholds.reduced_by_all_in_turns : kShmThresholds.reduced_by_all);
    const bool pays =
        kShmThresholds.least_halves_in_one_core <= bytes && bytes <= kShmThresholds.most_halves_in_one_core;
    return use_ == SlotOwnership::kOwn && in_one_core() && !casts() && pays;
  }
  [[nodiscard]] bool in_one_core() const noexcept { return group_.distance() == CoreLatency::kSameCore; }
  [[nodiscard]] std::size_t largest_piece() const noexcept {
    const std::size_t bytes = total_ * element_;
    const bool pair = group_.size() == 2;
    if (pair && !in_one_core())
      return bytes > kShmThresholds.large_message_of_two ? kShmThresholds.piece_of_large : kShmThresholds.piece_of_two;
    return bytes > kShmThresholds.large_message && !(pair && in_parts_) ? kShmThresholds.piece_of_large
                                                                        : group_.slot_bytes();
  }
  [[nodiscard]] std::size_t piece_elements() const noexcept {
    if (use_ != SlotOwnership::kOwn) return std::min(kShmThresholds.piece_handed_over, group_.slot_bytes()) / element_;
    const std::size_t bytes = total_ * element_;
    const std::size_t smallest =
        group_.oversubscribed() ? kShmThresholds.smallest_piece_in_turns : kShmThresholds.smallest_piece;
    std::size_t wanted = std::max((bytes + kShmThresholds.least_pieces - 1) / kShmThresholds.least_pieces, smallest);
    wanted = (wanted + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
    return std::min({wanted, group_.slot_bytes(), largest_piece()}) / element_;
  }
  /// First element of a piece in the stream.
  [[nodiscard]] std::size_t begin_of(std::size_t piece) const noexcept {
    return (backwards_ ? pieces_ - 1 - piece : piece) * piece_;
  }
  [[nodiscard]] std::size_t elements_of(std::size_t piece) const noexcept {
    return std::min(piece_, total_ - begin_of(piece));
  }

  void pack_next() {
    if (packed_ == pieces_) {
      if (pieces_ == 0) group_.publish(ShmCounter::kPosted, 0);
      return;
    }
    // The slot is free when all members are done with its last piece; a returned sum says so by itself.
    if (packed_ >= group_.slots() && use_ != SlotOwnership::kReturnedInPlace)
      group_.wait_all(ShmCounter::kTaken, packed_ - group_.slots() + 1);
    const PieceTimer timer(Piece::kPack, elements_of(packed_) * element_);
    std::byte* const slot = group_.slot(group_.position(), packed_);
    packing_.seek(begin_of(packed_));
    const std::size_t begin = in_parts_ ? part_begin(packed_, group_.position()) : 0;
    const std::size_t end = in_parts_ ? part_begin(packed_, group_.position() + 1) : 0;
    pack(slot, 0, begin, Pack::kAll);
    pack(slot, begin, end, Pack::kChanged);
    pack(slot, end, elements_of(packed_), Pack::kAll);
    group_.publish(ShmCounter::kPosted, ++packed_);
  }

  enum class Pack : std::uint8_t {
    kAll,
    kChanged
  };  // kChanged: without the elements that reduce() takes from the own tensor
  void pack(std::byte* slot, std::size_t begin, std::size_t end, Pack what) {
    packing_.walk(end - begin, [&](const Fragment& fragment, std::size_t first, std::size_t count, std::size_t at) {
      if (what == Pack::kChanged && is_as_packed(fragment)) return;
      std::byte* const to = slot + (begin + at) * element_;
      const std::byte* const input = fragment.input + first * tensor_element_;
      if (fetches_ && is_as_packed(fragment)) return fetch_copy(to, input, count * element_);
      (streams_ ? stream_convert_copy : convert_copy)(to, wire_, input, round_.dtype, count, fragment.prescale);
    });
  }
  /// Whether the own tensor holds the same bytes as the own slot would.
  [[nodiscard]] bool is_as_packed(const Fragment& fragment) const noexcept {
    return fragment.prescale == 1.0 && !casts();
  }

  /// Calls `run(fragment, first element in it, elements, bytes from the begin of the piece, inputs)` for `count`
  /// elements from `begin` of a piece.
  template <typename Run>
  void reduce(std::size_t piece, std::size_t begin, std::size_t count, Run&& run) {
    const PieceTimer timer(Piece::kReduce, count * element_);
    std::array<const std::byte*, kMostMembers> bases;
    std::array<const std::byte*, kMostMembers> inputs;
    const auto size = static_cast<std::size_t>(group_.size());
    for (std::size_t member = 0; member < size; ++member) bases[member] = group_.slot(static_cast<int>(member), piece);
    reducing_.seek(begin_of(piece) + begin);
    reducing_.walk(count, [&](const Fragment& fragment, std::size_t first, std::size_t some, std::size_t at) {
      const std::size_t offset = (begin + at) * element_;
      for (std::size_t member = 0; member < size; ++member) inputs[member] = bases[member] + offset;
      // The tensor's cache line is needed for the output anyway.
      if (is_as_packed(fragment)) {
        inputs[static_cast<std::size_t>(group_.position())] = fragment.input + first * tensor_element_;
      }
      run(fragment, first, some, offset, std::span<const std::byte* const>(inputs.data(), size));
    });
  }
  using Inputs = std::span<const std::byte* const>;

  void run_flat() {
    for (std::size_t piece = 0; piece < pieces_; ++piece) {
      if (packed_ < pieces_) pack_next();
      group_.wait_all(ShmCounter::kPosted, piece + 1);
      reduce(piece, 0, elements_of(piece),
             [&](const Fragment& fragment, std::size_t first, std::size_t count, std::size_t, Inputs inputs) {
               reduce_convert(fragment.output + first * tensor_element_, round_.dtype, inputs, wire_, count, round_.op,
                              fragment.postscale);
             });
      publish_taken(piece);
    }
  }

  /// Publishes only the numbers that a member will wait for; a small message posts one number in all.
  void publish_taken(std::size_t piece) {
    if (use_ == SlotOwnership::kReturnedInPlace) return;
    if (piece + group_.slots() < pieces_) group_.publish(ShmCounter::kTaken, piece + 1);
    if (piece + 1 == pieces_) group_.release_slots();
  }

  [[nodiscard]] std::size_t part_begin(std::size_t piece, int member) const noexcept {
    const std::size_t elements = elements_of(piece);
    const std::size_t unit = kPartAlignment / element_;
    const auto size = static_cast<std::size_t>(group_.size());
    const std::size_t units = (elements + unit - 1) / unit;
    return std::min(elements, units * static_cast<std::size_t>(member) / size * unit);
  }

  void run_in_parts() {
    const std::size_t ahead = group_.slots() - 1;
    for (std::size_t piece = 0; piece < pieces_; ++piece) {
      while (packed_ < pieces_ && packed_ < piece + ahead) pack_next();
      reduce_part(piece);
      if (piece > 0) spread(piece - 1);
    }
    if (pieces_ > 0) spread(pieces_ - 1);
  }

  void reduce_part(std::size_t piece) {
    group_.wait_all(ShmCounter::kPosted, piece + 1);
    const int own = group_.position();
    const std::size_t begin = part_begin(piece, own);
    const std::size_t end = part_begin(piece, own + 1);
    std::byte* const slot = slot_of_sums(own, piece);
    if (casts()) {
      reduce(piece, begin, end - begin,
             [&](const Fragment& fragment, std::size_t, std::size_t count, std::size_t offset, Inputs inputs) {
               reduce_many(slot + offset, inputs, count, wire_, round_.op, fragment.postscale);
             });
    } else if (use_ == SlotOwnership::kReturnedInPlace) {
      reduce(piece, begin, end - begin,
             [&](const Fragment& fragment, std::size_t first, std::size_t count, std::size_t offset, Inputs inputs) {
               reduce_twice(fragment.output + first * element_, slot + offset, inputs.first<2>(), count, wire_,
                            round_.op, fragment.postscale);
             });
    } else {
      // A long copy does not fetch the lines that it overwrites, which the others have read; a reduction would.
      reduce(piece, begin, end - begin,
             [&](const Fragment& fragment, std::size_t first, std::size_t count, std::size_t, Inputs inputs) {
               reduce_many(fragment.output + first * element_, inputs, count, wire_, round_.op, fragment.postscale);
             });
      sharing_.seek(begin_of(piece) + begin);
      sharing_.walk(end - begin, [&](const Fragment& fragment, std::size_t first, std::size_t count, std::size_t at) {
        (streams_ ? stream_convert_copy : convert_copy)(slot + (begin + at) * element_, wire_,
                                                        fragment.output + first * element_, wire_, count, 1.0);
      });
    }
    group_.publish(ShmCounter::kReduced, piece + 1);
  }

  /// Where a member leaves the sums of its part: in its own slot, or in that of the other one, whose data it has read.
  [[nodiscard]] std::byte* slot_of_sums(int member, std::size_t piece) const noexcept {
    return group_.slot(use_ == SlotOwnership::kReturnedInPlace ? 1 - member : member, piece);
  }

  void spread(std::size_t piece) {
    const bool from_afar = !casts() && (streams_ || use_ == SlotOwnership::kReturnedInPlace);
    spreading_.seek(begin_of(piece));
    for (int member = 0; member < group_.size(); ++member) {
      if (member != group_.position()) group_.wait(member, ShmCounter::kReduced, piece + 1);
      const std::size_t begin = part_begin(piece, member);
      const PieceTimer timer(Piece::kSpread, (part_begin(piece, member + 1) - begin) * element_);
      const std::byte* const slot = slot_of_sums(member, piece);
      spreading_.walk(part_begin(piece, member + 1) - begin,
                      [&](const Fragment& fragment, std::size_t first, std::size_t count, std::size_t at) {
                        if (member == group_.position() && !casts()) return;  // it is in the output already
                        std::byte* const output = fragment.output + first * tensor_element_;
                        const std::byte* const sums = slot + (begin + at) * element_;
                        if (from_afar) return fetch_copy(output, sums, count * element_);
                        convert_copy(output, round_.dtype, sums, wire_, count, 1.0);
                      });
    }
    publish_taken(piece);
  }

  SharedRound round_;
  DType wire_;                  // of the slots
  std::size_t element_;         // bytes, there
  std::size_t tensor_element_;  // bytes, in the tensors
  FragmentCursor packing_;
  FragmentCursor reducing_;
  FragmentCursor sharing_;
  FragmentCursor spreading_;
  std::size_t total_ = 0;
  SlotOwnership use_ = SlotOwnership::kOwn;
  bool in_parts_ = false;
  bool streams_ = false;  // slots are written past the caches
  bool fetches_ =
      false;  // tensors are prefetched while they are packed: they are large, or one batch of many in a step
  bool backwards_ = false;  // the last piece of the stream comes first
  std::size_t piece_ = 1;
  std::size_t pieces_ = 0;
  std::size_t packed_ = 0;
};

}  // namespace

std::unique_ptr<ShmRound> post_allreduce(ShmGroup& shm_group, std::span<const Fragment> fragments,
                                         const SharedRound& round) {
  RINGTUNE_CHECK_LE(shm_group.size(), kMostMembers, "members of a shared-memory group");
  return std::make_unique<SharedAllreduce>(shm_group, fragments, round);
}

bool shared_allreduce(ShmGroup& shm_group, std::span<const Fragment> fragments, const SharedRound& round) {
  const std::unique_ptr<ShmRound> posted = post_allreduce(shm_group, fragments, round);
  const bool agreed = await_agreement(*posted);
  if (agreed) posted->finish();
  return agreed;
}

}  // namespace ringtune
