// A vote that travels with a collective: every message carries, in front of its bytes, what its sender knows of the
// votes. In an allreduce the result of each rank depends on the bytes of every rank. So when it is done every rank
// knows every vote, whatever the algorithm, and all come to the same answer without a further message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "transport/link.h"

namespace ringtune {

/// What one rank knows of the votes on one round. One thread at a time.
class AgreementHeader {
 public:
  static constexpr std::size_t kHeaderBytes = 16;
  /// So many bytes of a message are sent together with its header, in one system call, and received with it.
  static constexpr std::size_t kStagedBytes = 8 << 10;

  /// `token` (below 2^63): the round. `position` of this rank in a group of `size`.
  AgreementHeader(std::uint64_t token, int position, int size, bool against);

  /// True when a rank whose vote is known here is against.
  [[nodiscard]] bool against() const noexcept { return against_; }
  /// When all votes were known here; 0 before. In groups of more than 64 some votes stand for several.
  [[nodiscard]] std::int64_t known_ns() const noexcept { return known_ns_; }
  /// Positions whose votes are not known here.
  [[nodiscard]] std::vector<int> missing() const;

  void write(std::span<std::byte> header) const noexcept;
  /// Throws Protocol when the header is one of another round.
  void fold(std::span<const std::byte> header, int peer);
  /// Takes the header of a message of `bytes` out of the link; false when it has not arrived.
  [[nodiscard]] bool take(Link& link, std::size_t bytes);
  /// A message's first bytes behind its header.
  void stage(std::span<const std::byte> message, std::vector<std::byte>& staged) const;

 private:
  void note_known() noexcept;

  std::uint64_t token_;
  int size_;
  bool against_;
  std::uint64_t voted_;  // bit p % 64: position p
  std::uint64_t all_;
  std::int64_t known_ns_ = 0;
};

}  // namespace ringtune
