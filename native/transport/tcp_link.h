// A link over one or several TCP connections to the same peer.
#pragma once

#include <sys/uio.h>

#include <array>
#include <string>
#include <vector>

#include "base/fd.h"
#include "transport/link.h"
#include "transport/link_table.h"
#include "transport/memory.h"
#include "transport/socket.h"
#include "transport/stripes.h"
#include "transport/waker.h"

namespace ringtune {

struct TcpLinkParts {
  std::vector<Fd> sockets;  // connected, non-blocking; the same order on both sides
  int peer = 0;
  std::string peer_name;
  std::string_view kind = "tcp";  // a literal: "mpi" where the socket's other end is with a Carrier
  Waker* waker = nullptr;         // borrowed, outlives the link
  std::size_t buffer_bytes = 0;   // for bytes that are looked at by peek(); rounded up to whole pages
};

/// Owns its sockets and a receive buffer; the waker watches the sockets for both directions while the link lives. The
/// stream is dealt out to the sockets in stripes; when one of them breaks the link is broken. One thread at a time,
/// except abort(). Never blocks.
class TcpLink final : public Link {
 public:
  /// Throws Error when the kernel gives no memory or refuses to watch.
  explicit TcpLink(TcpLinkParts parts);
  ~TcpLink() override;
  TcpLink(const TcpLink&) = delete;
  TcpLink& operator=(const TcpLink&) = delete;

  [[nodiscard]] int peer() const noexcept override { return peer_; }
  [[nodiscard]] std::string_view kind() const noexcept override { return kind_; }
  std::size_t try_send(std::span<const std::byte> bytes) override;
  [[nodiscard]] std::span<const std::byte> peek() override { return peek_some(SIZE_MAX); }
  [[nodiscard]] std::span<const std::byte> peek_some(std::size_t wanted) override;
  std::size_t try_receive(std::span<std::byte> into) override;
  void consume(std::size_t bytes) override;
  void abort(const std::string& reason) noexcept override;

  static constexpr std::size_t kStripeBytes = 64 << 10;

 private:
  // Positions count the bytes of the whole stream since the start; each is the next one on this socket.
  struct Socket {
    Fd fd;
    std::uint64_t sent = 0;
    std::uint64_t received = 0;
    std::uint64_t copied = 0;  // bytes before it have left the buffer, or never went through it
    Transfer ended;            // closed once the stream has ended
  };
  struct Place {  // where the byte at position `begin` of the stream goes
    std::uint64_t begin;
    std::byte* data;
  };

  [[nodiscard]] bool send_on(Socket& socket, std::span<const std::byte> bytes);
  void fill(std::uint64_t end);
  void read_from(Socket& socket, Place place, std::uint64_t end);
  void empty_buffer(Socket& socket, Place place, std::uint64_t end);
  [[nodiscard]] std::size_t index_of(const Socket& socket) const noexcept;
  [[nodiscard]] Socket& slowest() noexcept;
  [[nodiscard]] std::uint64_t available() const noexcept { return in_order_ - consumed_; }
  [[noreturn]] void throw_lost(const Socket& socket, const Transfer& transfer) const;

  std::vector<Socket> sockets_;
  Stripes stripes_;
  int peer_;
  std::string_view kind_;
  std::string peer_name_;
  Waker& waker_;
  AbortState aborted_;
  std::size_t capacity_;
  Mapping buffer_;  // mirrored: the byte at position p lies at p % capacity_, and no range wraps
  std::array<iovec, kMaxBuffers> pieces_{};
  std::uint64_t sent_ = 0;      // accepted from the caller
  std::uint64_t consumed_ = 0;  // taken by the caller
  std::uint64_t in_order_ = 0;  // everything before it has been received
  CutEnd cut_end_;
};

}  // namespace ringtune
