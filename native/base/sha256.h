// SHA-256 (FIPS 180-4) and HMAC (RFC 2104), by which the processes of a job prove to each other that they belong to it.
// Written out here because a wheel that runs on every host cannot lean on one version of OpenSSL; held in tests against
// the vectors of RFC 4231 and Python's hashlib.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"

namespace ringtune {

using Digest = std::array<std::byte, 32>;

/// Hashes bytes as they come. Value type.
class Sha256 {
 public:
  Sha256& add(ByteView bytes) noexcept;
  /// The hash of all that was added; nothing can be added afterwards.
  [[nodiscard]] Digest finish() noexcept;

 private:
  void take_block(const std::byte* block) noexcept;

  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> block_{};
  std::uint64_t bytes_ = 0;
};

[[nodiscard]] Digest hmac_sha256(ByteView key, ByteView message) noexcept;

/// Takes the same time wherever the two differ, so that a proof cannot be guessed byte by byte.
[[nodiscard]] bool same_digest(ByteView a, ByteView b) noexcept;

}  // namespace ringtune
