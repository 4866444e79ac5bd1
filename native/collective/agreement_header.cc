#include "collective/agreement_header.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"

namespace ringtune {
namespace {

constexpr int kBits = 64;

constexpr std::uint64_t bit_of(int position) noexcept { return std::uint64_t{1} << (position % kBits); }

std::uint64_t load(std::span<const std::byte> bytes) noexcept {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof value; ++i) value |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
  return value;
}

void store(std::span<std::byte> bytes, std::uint64_t value) noexcept {
  for (std::size_t i = 0; i < sizeof value; ++i) bytes[i] = static_cast<std::byte>(value >> (8 * i));
}

}  // namespace

AgreementHeader::AgreementHeader(std::uint64_t token, int position, int size, bool against)
    : token_(token), size_(size), against_(against), voted_(bit_of(position)), all_(0) {
  RINGTUNE_CHECK(token >> 63 == 0, "token ", token);
  for (int other = 0; other < std::min(size, kBits); ++other) all_ |= bit_of(other);
  note_known();
}

void AgreementHeader::note_known() noexcept {
  if (known_ns_ == 0 && voted_ == all_) known_ns_ = now_ns();
}

std::vector<int> AgreementHeader::missing() const {
  std::vector<int> positions;
  for (int position = 0; position < size_; ++position) {
    if ((voted_ & bit_of(position)) == 0) positions.push_back(position);
  }
  return positions;
}

// The token and the vote against it in one word, little-endian; then who has voted.
void AgreementHeader::write(std::span<std::byte> header) const noexcept {
  store(header, token_ << 1 | (against_ ? 1 : 0));
  store(header.subspan(sizeof token_), voted_);
}

void AgreementHeader::fold(std::span<const std::byte> header, int peer) {
  const std::uint64_t word = load(header);
  if (word >> 1 != token_) {
    throw Protocol("rank " + std::to_string(peer) + " is in round " + std::to_string(word >> 1) +
                   " of its schedule, this rank in round " + std::to_string(token_));
  }
  against_ = against_ || (word & 1) != 0;
  voted_ |= load(header.subspan(sizeof token_)) & all_;
  note_known();
}

bool AgreementHeader::take(Link& link, std::size_t bytes) {
  const std::span<const std::byte> seen = link.peek_some(kHeaderBytes + std::min(bytes, kStagedBytes));
  if (seen.size() < kHeaderBytes) return false;
  fold(seen.first(kHeaderBytes), link.peer());
  link.consume(kHeaderBytes);
  return true;
}

void AgreementHeader::stage(std::span<const std::byte> message, std::vector<std::byte>& staged) const {
  const std::size_t count = std::min(message.size(), kStagedBytes);
  staged.resize(kHeaderBytes + count);
  write(staged);
  if (count > 0) std::memcpy(staged.data() + kHeaderBytes, message.data(), count);
}

}  // namespace ringtune
