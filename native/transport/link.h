// One ordered reliable byte channel to one peer. Owned by a Fabric. Used by one thread at a time, except abort().
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace ringtune {

class Link {
 public:
  virtual ~Link() = default;
  [[nodiscard]] virtual int peer() const noexcept = 0;
  [[nodiscard]] virtual std::string_view kind() const noexcept = 0;  // "inproc", "shm", "tcp"

  // Non-blocking halves: bytes moved now, 0 when none can. They throw PeerLost after the peer closed or died, and the
  // error given to abort().
  /// Accepts a prefix of `bytes`; the accepted part may be overwritten by the caller at once. The rest must stay as it
  /// is and be offered again: on a link of several sockets parts of it may be under way. Nothing to send is never an
  /// error of the peer: bytes that it sent before it closed can still be read.
  virtual std::size_t try_send(std::span<const std::byte> bytes) = 0;
  /// A view of received bytes that have not been consumed (contiguous, may be less than all; empty when none).
  /// Valid until the next consume(). Shared memory: no copy. At least `kPeekMinimum` bytes once that many arrived,
  /// so that a reader of fixed-size elements always makes progress. Throws PeerLost only when all bytes are consumed,
  /// or when the same few bytes are shown again and again after the end of the stream.
  [[nodiscard]] virtual std::span<const std::byte> peek() = 0;
  virtual void consume(std::size_t bytes) = 0;
  /// As peek(), for a caller that can use at most `wanted` bytes now: a link that copies (TCP) takes no more out of the
  /// socket, so that the rest can go straight to its place by try_receive(). kPeekMinimum counts up to `wanted`.
  [[nodiscard]] virtual std::span<const std::byte> peek_some(std::size_t wanted) {
    const std::span<const std::byte> all = peek();
    return all.first(std::min(wanted, all.size()));
  }
  /// Takes the next bytes out of the stream into `into`; returns how many lie there, in order. The next bytes
  /// must be received into the rest of the same span until that is full: on a link of several sockets later parts of it
  /// may hold bytes already.
  virtual std::size_t try_receive(std::span<std::byte> into) {
    const std::span<const std::byte> view = peek_some(into.size());
    if (!view.empty()) std::memcpy(into.data(), view.data(), view.size());
    consume(view.size());
    return view.size();
  }

  /// Any thread: every later or pending call on this link throws PeerLost(peer, reason). Wakes the rank's Waker.
  virtual void abort(const std::string& reason) noexcept = 0;

  static constexpr std::size_t kPeekMinimum = 64;
};

}  // namespace ringtune
