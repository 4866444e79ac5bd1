#include "collective/shared_exchange.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "device/cpu_kernels.h"
#include "trace/piece_log.h"
#include "transport/shm_thresholds.h"

namespace ringtune {
namespace {

constexpr std::size_t kShareAlignment = 64;  // shares of different members lie in different cache lines
/// How a message is cut into pieces, each of which costs a hand-over.
struct Cut {
  std::size_t least_pieces;
  std::size_t largest;
};
constexpr Cut kTogether{1, kShmThresholds.piece_given_together};
constexpr Cut kByOne{kShmThresholds.least_pieces_given_by_one, kShmThresholds.piece_given_by_one};

constexpr std::size_t aligned(std::size_t bytes) noexcept {
  return (bytes + kShareAlignment - 1) / kShareAlignment * kShareAlignment;
}
constexpr std::size_t pieces_of(std::size_t bytes, std::size_t piece) noexcept { return (bytes + piece - 1) / piece; }

/// Copies bytes of the own share, which is `share` bytes large, to its place in the output.
void keep(std::byte* to, const std::byte* from, std::size_t bytes, std::size_t share) {
  if (bytes == 0) return;
  if (share >= kShmThresholds.least_own_share_streamed)
    return stream_convert_copy(to, DType::kUint8, from, DType::kUint8, bytes, 1.0);
  std::memcpy(to, from, bytes);
}

/// Bytes of a piece, for a message of which so many bytes go through the slots of one member.
std::size_t piece_for(std::size_t bytes, std::size_t room, const Cut& cut) noexcept {
  const std::size_t wanted =
      aligned(std::max((bytes + cut.least_pieces - 1) / cut.least_pieces, kShmThresholds.smallest_piece));
  return std::min({wanted, room, cut.largest});
}

/// Bytes of a share in a piece, where a piece has so many shares and a member gets at most so many bytes in all.
std::size_t unit_for(std::size_t bytes, std::size_t room, std::size_t shares) noexcept {
  const std::size_t most = room / shares / kShareAlignment * kShareAlignment;
  RINGTUNE_CHECK(most > 0, "slots of ", room, " bytes have no room for ", shares, " shares");
  const std::size_t wanted = aligned(piece_for(bytes * shares, room, kTogether) / shares);
  return std::max(std::min({wanted, most, aligned(bytes)}), kShareAlignment);
}

}  // namespace

void SharedExchange::post(std::uint64_t token, const Layout& layout, const SendLayout& send_layout) {
  own_pieces_ = send_layout.pieces;
  group_.begin_round(token);
  const bool apart = group_.distance() == CoreLatency::kApart;
  const bool in_turn =
      layout.in_turn && (!apart || (layout.message > 0 && layout.message <= kShmThresholds.most_alternating_apart));
  const SlotOwnership use = in_turn && group_.changes_owner() ? SlotOwnership::kAlternating : SlotOwnership::kOwn;
  group_.use_slots_for(layout.piece, layout.message, use);
  group_.account_bytes(std::max(layout.message, send_layout.bytes));
  streams_ = apart && use == SlotOwnership::kOwn && kShmThresholds.least_streamed <= send_layout.bytes &&
             (group_.size() > 2 || send_layout.bytes <= kShmThresholds.most_streamed_of_two);
  fetches_ = apart || group_.changes_owner();
  if (own_pieces_ > 0) return pack_next();  // together with the vote
  group_.publish(ShmCounter::kPosted, 0);
}

void SharedExchange::pack_next() {
  // The slot is free when all members are done with its last piece.
  if (packed_ >= group_.slots()) group_.wait_all(ShmCounter::kTaken, packed_ - group_.slots() + 1);
  pack(packed_, group_.slot(group_.position(), packed_));
  group_.publish(ShmCounter::kPosted, ++packed_);
}

void SharedExchange::finish() {
  pieces_ = learn_pieces();
  for (std::size_t piece = 0; piece < pieces_; ++piece) {
    if (packed_ < own_pieces_) pack_next();
    take(piece);
    // Only the numbers that a member will wait for.
    if (piece + group_.slots() < pieces_) group_.publish(ShmCounter::kTaken, piece + 1);
  }
  group_.release_slots();
}

const std::byte* SharedExchange::posted(int member, std::size_t piece) {
  group_.wait(member, ShmCounter::kPosted, piece + 1);
  return group_.slot(member, piece);
}

void SharedExchange::to_slot(std::byte* slot, const std::byte* from, std::size_t bytes) const {
  const PieceTimer timer(Piece::kPack, bytes);
  if (bytes == 0) return;
  if (streams_) return stream_convert_copy(slot, DType::kUint8, from, DType::kUint8, bytes, 1.0);
  std::memcpy(slot, from, bytes);
}

void SharedExchange::from_slot(std::byte* to, const std::byte* slot, std::size_t bytes) const {
  const PieceTimer timer(Piece::kSpread, bytes);
  if (bytes == 0) return;
  fetches_ ? fetch_copy(to, slot, bytes) : static_cast<void>(std::memcpy(to, slot, bytes));
}

SharedGather::SharedGather(ShmGroup& shm_group, std::uint64_t token, std::vector<std::size_t> blocks,
                           const std::byte* input)
    : SharedExchange(shm_group), blocks_(std::move(blocks)), input_(input) {
  RINGTUNE_CHECK_EQ(blocks_.size(), members());
  const auto [least, most] = std::minmax_element(blocks_.begin(), blocks_.end());
  const bool by_one = std::accumulate(blocks_.begin(), blocks_.end(), std::size_t{0}) == *most;
  piece_ = piece_for(*most, shm_group.slot_bytes(), by_one ? kByOne : kTogether);
  pieces_ = pieces_of(*most, piece_);
  const std::size_t block = blocks_[own()];
  post(token, {std::min(piece_, *most), *most, *least == *most}, {pieces_of(block, piece_), block});
}

std::size_t SharedGather::bytes_of(std::size_t member, std::size_t piece) const noexcept {
  const std::size_t begin = piece * piece_;
  return begin < blocks_[member] ? std::min(piece_, blocks_[member] - begin) : 0;
}

void SharedGather::pack(std::size_t piece, std::byte* slot) {
  to_slot(slot, input_ + piece * piece_, bytes_of(own(), piece));
}

void SharedGather::take(std::size_t piece) {
  const std::size_t offset = piece * piece_;
  std::byte* const own_place =
      output_ + std::accumulate(blocks_.begin(), blocks_.begin() + group_.position(), std::size_t{0});
  if (const std::size_t bytes = bytes_of(own(), piece); bytes > 0 && own_place != input_) {
    keep(own_place + offset, input_ + offset, bytes, blocks_[own()]);
  }
  std::byte* place = output_ + offset;
  for (std::size_t member = 0; member < members(); place += blocks_[member++]) {
    const std::size_t bytes = bytes_of(member, piece);
    if (member != own() && bytes > 0) from_slot(place, posted(static_cast<int>(member), piece), bytes);
  }
}

SharedAlltoall::SharedAlltoall(ShmGroup& shm_group, std::uint64_t token, std::vector<std::size_t> sent,
                               const std::byte* input)
    : SharedExchange(shm_group), sent_(std::move(sent)), input_(input) {
  RINGTUNE_CHECK_EQ(sent_.size(), members());
  std::size_t most = 0;
  for (std::size_t member = 0; member < members(); ++member) {
    if (member != own()) most = std::max(most, sent_[member]);
  }
  unit_ = unit_for(most, shm_group.slot_bytes() - table_bytes(), members() - 1);
  // The amounts of others are not known yet, so slots neither alternate nor keep their set, on which all must agree.
  const std::size_t bytes = std::accumulate(sent_.begin(), sent_.end(), std::size_t{0}) - sent_[own()];
  post(token, {shm_group.slot_bytes(), 0, true}, {given(unit_, own(), sent_).pieces, bytes});
}

std::size_t SharedAlltoall::table_bytes() const noexcept { return aligned((members() + 1) * sizeof(std::uint64_t)); }

/// There is at least one piece, which holds the table.
SharedAlltoall::Given SharedAlltoall::given(std::size_t unit, std::size_t member,
                                            std::span<const std::size_t> bytes) const noexcept {
  std::size_t pieces = 1;
  for (std::size_t receiver = 0; receiver < bytes.size(); ++receiver) {
    if (receiver != member) pieces = std::max(pieces, pieces_of(bytes[receiver], unit));
  }
  return {unit, pieces};
}

void SharedAlltoall::pack(std::size_t piece, std::byte* slot) {
  if (piece == 0) {
    const std::uint64_t unit = unit_;
    std::memcpy(slot, &unit, sizeof unit);
    std::memcpy(slot + sizeof unit, sent_.data(), members() * sizeof(std::uint64_t));
  }
  const std::byte* from = input_ + piece * unit_;
  std::byte* const to = slot + table_bytes();
  for (std::size_t receiver = 0; receiver < members(); ++receiver) {
    const std::size_t begin = std::min(piece * unit_, sent_[receiver]);
    if (receiver != own())
      to_slot(to + share_of(own(), receiver) * unit_, from, std::min(unit_, sent_[receiver] - begin));
    from += sent_[receiver];
  }
}

const std::vector<std::size_t>& SharedAlltoall::received() {
  if (!received_.empty()) return received_;
  std::vector<std::uint64_t> table(members());
  received_.reserve(members());
  given_.reserve(members());
  for (std::size_t member = 0; member < members(); ++member) {
    if (member == own()) {
      received_.push_back(sent_[member]);
      given_.push_back(given(unit_, member, sent_));
      continue;
    }
    const std::byte* const slot = posted(static_cast<int>(member), 0);
    std::uint64_t unit = 0;
    std::memcpy(&unit, slot, sizeof unit);
    std::memcpy(table.data(), slot + sizeof unit, members() * sizeof(std::uint64_t));
    received_.push_back(table[own()]);
    given_.push_back(given(unit, member, table));
  }
  return received_;
}

std::size_t SharedAlltoall::learn_pieces() {
  (void)received();
  std::size_t most = 0;
  for (const Given& one : given_) most = std::max(most, one.pieces);
  return most;
}

void SharedAlltoall::take(std::size_t piece) {
  std::byte* place = output_;
  for (std::size_t member = 0; member < members(); place += received_[member++]) {
    const auto& [unit, pieces] = given_[member];
    const std::size_t begin = std::min(piece * unit, received_[member]);
    std::size_t bytes = std::min(unit, received_[member] - begin);
    if (member != own()) {
      if (piece >= pieces) continue;
      const std::byte* const slot = posted(static_cast<int>(member), piece);
      from_slot(place + begin, slot + table_bytes() + share_of(member, own()) * unit, bytes);
      continue;
    }
    // The own share may be larger than those for others; the last piece takes the rest of it.
    if (piece + 1 == pieces) bytes = received_[member] - begin;
    if (piece >= pieces || bytes == 0) continue;
    const std::byte* const from =
        input_ + std::accumulate(sent_.begin(), sent_.begin() + group_.position(), std::size_t{0});
    keep(place + begin, from + begin, bytes, received_[member]);
  }
}

SharedReducescatter::SharedReducescatter(ShmGroup& shm_group, std::uint64_t token, Scatter scatter,
                                         const std::byte* input)
    : SharedExchange(shm_group),
      scatter_(std::move(scatter)),
      inputs_(members()),
      input_(input),
      element_(size_of(scatter_.dtype)) {
  RINGTUNE_CHECK_EQ(scatter_.parts.size(), members());
  const std::size_t most = *std::max_element(scatter_.parts.begin(), scatter_.parts.end());
  const std::size_t shares = members() - (is_as_packed() ? 1 : 0);
  unit_ = unit_for(most * element_, shm_group.slot_bytes(), shares) / element_;
  begin_ = std::accumulate(scatter_.parts.begin(), scatter_.parts.begin() + shm_group.position(), std::size_t{0});
  pieces_ = pieces_of(most, unit_);
  const std::size_t bytes = most * element_ * shares;
  post(token, {unit_ * element_ * shares, bytes, true}, {pieces_, bytes});
}

std::size_t SharedReducescatter::elements_of(std::size_t member, std::size_t piece) const noexcept {
  const std::size_t begin = piece * unit_;
  return begin < scatter_.parts[member] ? std::min(unit_, scatter_.parts[member] - begin) : 0;
}

void SharedReducescatter::pack(std::size_t piece, std::byte* slot) {
  const PieceTimer timer(Piece::kPack, unit_ * element_);
  const std::byte* from = input_ + piece * unit_ * element_;
  for (std::size_t member = 0; member < members(); from += scatter_.parts[member++] * element_) {
    const std::size_t count = elements_of(member, piece);
    if (count == 0 || (member == own() && is_as_packed())) continue;
    std::byte* const to = slot + share_of(own(), member) * unit_ * element_;
    (streams() ? stream_convert_copy : convert_copy)(to, scatter_.dtype, from, scatter_.dtype, count,
                                                     scatter_.prescale);
  }
}

void SharedReducescatter::take(std::size_t piece) {
  const std::size_t count = elements_of(own(), piece);
  for (std::size_t member = 0; member < members(); ++member) {
    const bool from_tensor = member == own() && is_as_packed();
    const std::byte* const slot =
        member == own() ? group_.slot(group_.position(), piece) : posted(static_cast<int>(member), piece);
    inputs_[member] =
        from_tensor ? input_ + (begin_ + piece * unit_) * element_ : slot + share_of(member, own()) * unit_ * element_;
  }
  if (count == 0) return;
  const PieceTimer timer(Piece::kReduce, count * element_);
  reduce_many(output_ + piece * unit_ * element_, inputs_, count, scatter_.dtype, scatter_.op, scatter_.postscale);
}

}  // namespace ringtune
