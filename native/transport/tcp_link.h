// A link over one TCP connection.
#pragma once

#include <string>

#include "base/bytes.h"
#include "base/fd.h"
#include "transport/link.h"
#include "transport/link_table.h"
#include "transport/socket.h"
#include "transport/waker.h"

namespace ringtune {

/// Owns a connected non-blocking socket and a receive buffer; the waker (borrowed, outlives the link) watches the
/// socket for both directions while the link lives. One thread at a time, except abort(). Never blocks.
class TcpLink final : public Link {
 public:
  TcpLink(Fd fd, int peer, std::string peer_name, Waker& waker, std::size_t buffer_bytes);
  ~TcpLink() override;
  TcpLink(const TcpLink&) = delete;
  TcpLink& operator=(const TcpLink&) = delete;

  [[nodiscard]] int peer() const noexcept override { return peer_; }
  [[nodiscard]] std::string_view kind() const noexcept override { return "tcp"; }
  std::size_t try_send(std::span<const std::byte> bytes) override;
  [[nodiscard]] std::span<const std::byte> peek() override;
  void consume(std::size_t bytes) override;
  void abort(const std::string& reason) noexcept override;

 private:
  void fill();
  [[noreturn]] void throw_lost(const Transfer& transfer) const;

  Fd fd_;
  int peer_;
  std::string peer_name_;
  Waker& waker_;
  AbortState aborted_;
  Bytes buffer_;
  std::size_t begin_ = 0;  // received, not consumed: [begin_, end_)
  std::size_t end_ = 0;
  CutEnd cut_end_;
  Transfer ended_;  // closed once the stream has ended
};

}  // namespace ringtune
