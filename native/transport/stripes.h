// How one stream of bytes is dealt out to several sockets: stripes of equal length in turn. Both ends count positions
// of the stream from 0, so nothing is written about it on the wire. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace ringtune {

class Stripes {
 public:
  /// `sockets` >= 1; `stripe_bytes` >= 1 counts only for several sockets.
  constexpr Stripes(std::size_t sockets, std::uint64_t stripe_bytes) noexcept
      : sockets_(sockets), stripe_bytes_(sockets == 1 ? UINT64_MAX : stripe_bytes) {}

  /// Socket that carries the byte at `position`.
  [[nodiscard]] constexpr std::size_t socket_of(std::uint64_t position) const noexcept {
    return static_cast<std::size_t>(position / stripe_bytes_ % sockets_);
  }
  /// The first position from `position` on that travels on `socket`.
  [[nodiscard]] constexpr std::uint64_t next_on(std::size_t socket, std::uint64_t position) const noexcept {
    const std::size_t here = socket_of(position);
    if (here == socket) return position;
    const std::size_t turns = (socket + sockets_ - here) % sockets_;
    return (position / stripe_bytes_ + turns) * stripe_bytes_;
  }
  /// Bytes from `position` (on its own socket) to the end of its stripe, at most to `end`.
  [[nodiscard]] constexpr std::uint64_t run(std::uint64_t position, std::uint64_t end) const noexcept {
    return std::min(end - position, stripe_bytes_ - position % stripe_bytes_);
  }

 private:
  std::size_t sockets_;
  std::uint64_t stripe_bytes_;
};

}  // namespace ringtune
