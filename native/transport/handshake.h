// Whoever connects to a process of a job, and whoever answers, prove that they know the job's secret before anything
// else that they say counts. Each side gives a number that was never used before (a nonce), and the proof is the HMAC
// of both numbers, of the side that gives it and of what the connection is for: so a proof is of no use on another
// connection, for another rank or channel, or in the other direction. The secret itself never travels.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/sha256.h"

namespace ringtune {

/// What all processes of a job know and nobody else does. Throws InvalidArgument when it is empty.
class Secret {
 public:
  explicit Secret(std::string text);
  [[nodiscard]] ByteView bytes() const noexcept { return std::as_bytes(std::span(text_)); }

 private:
  std::string text_;
};

using Nonce = std::array<std::byte, 32>;
[[nodiscard]] Nonce fresh_nonce();  // getrandom; throws Error

/// The two sides of a connection: who opened it, and who listened.
enum class Side : std::uint8_t { kCaller = 1, kListener = 2 };

/// One connection's handshake, alike on both sides. `purpose`: what the connection is for, as both sides know it.
struct Handshake {
  Nonce caller{};
  Nonce listener{};
  [[nodiscard]] Digest proof(const Secret& secret, Side side, ByteView purpose) const;
  [[nodiscard]] bool holds(const Secret& secret, Side side, ByteView purpose, ByteView proof) const {
    return same_digest(this->proof(secret, side, purpose), proof);
  }
};

/// What a stranger may keep open, and for how long, before it has proved that it belongs to the job.
inline constexpr std::size_t kMaxUnproven = 256;
inline constexpr std::size_t kMaxUnprovenBytes = 4096;  // that are read of it and kept
inline constexpr std::int64_t kProofTimeNs = 10'000'000'000;

}  // namespace ringtune
