#include "transport/tcp_link.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace ringtune {
namespace {

Mapping map_buffer(std::size_t bytes) {
  const Fd memory = create_segment("ringtune-tcp", bytes);
  return map_mirrored(memory.get(), 0, bytes);
}

}  // namespace

TcpLink::TcpLink(TcpLinkParts parts)
    : stripes_(parts.sockets.size(), kStripeBytes),
      peer_(parts.peer),
      kind_(parts.kind),
      peer_name_(std::move(parts.peer_name)),
      waker_(*parts.waker),
      capacity_(std::bit_ceil(std::max(parts.buffer_bytes, page_bytes()))),
      buffer_(map_buffer(capacity_)) {
  RINGTUNE_CHECK(!parts.sockets.empty(), "a link without a socket");
  for (Fd& fd : parts.sockets) {
    const std::uint64_t first = stripes_.next_on(sockets_.size(), 0);
    sockets_.push_back({.fd = std::move(fd), .sent = first, .received = first, .copied = first, .ended = {}});
  }
  for (const Socket& socket : sockets_) {
    if (kind_ == "tcp") keep_alive(socket.fd.get());
    // Both directions from the start: watches are edge-triggered, and the kernel reports room to write only after a
    // send found none, so an idle or fast link costs no wake-ups and no further system calls.
    waker_.watch(socket.fd.get(), true);
  }
}

TcpLink::~TcpLink() {
  for (const Socket& socket : sockets_) waker_.unwatch(socket.fd.get());
}

std::size_t TcpLink::index_of(const Socket& socket) const noexcept {
  return static_cast<std::size_t>(&socket - sockets_.data());
}

/// The socket whose next byte stands first in the stream.
TcpLink::Socket& TcpLink::slowest() noexcept {
  return *std::min_element(sockets_.begin(), sockets_.end(),
                           [](const Socket& a, const Socket& b) { return a.received < b.received; });
}

// A socket without room does not hold up the others: they send their later stripes ahead, and only what is out on all
// of them up to some byte counts as accepted.
std::size_t TcpLink::try_send(std::span<const std::byte> bytes) {
  aborted_.check(peer_);
  if (bytes.empty()) return 0;
  const std::uint64_t end = sent_ + bytes.size();
  std::uint64_t accepted = end;
  const std::size_t first = stripes_.socket_of(sent_);
  for (std::size_t turn = 0; turn < sockets_.size(); ++turn) {
    Socket& socket = sockets_[(first + turn) % sockets_.size()];
    while (socket.sent < end && send_on(socket, bytes)) {
    }
    accepted = std::min(accepted, socket.sent);
  }
  const auto count = static_cast<std::size_t>(accepted - sent_);
  sent_ = accepted;
  return count;
}

/// One system call; true when the socket took all that it was offered, so that it may take more.
bool TcpLink::send_on(Socket& socket, std::span<const std::byte> bytes) {
  const std::size_t index = index_of(socket);
  const std::uint64_t end = sent_ + bytes.size();
  std::size_t count = 0;
  std::size_t offered = 0;
  for (std::uint64_t at = socket.sent; at < end && count < pieces_.size(); at = stripes_.next_on(index, at)) {
    const std::uint64_t run = stripes_.run(at, end);
    pieces_[count++] = {const_cast<std::byte*>(bytes.data() + (at - sent_)), static_cast<std::size_t>(run)};
    offered += static_cast<std::size_t>(run);
    at += run;
  }
  const Transfer transfer = write_from(socket.fd.get(), std::span(pieces_).first(count));
  if (transfer.closed) [[unlikely]]
    throw_lost(socket, transfer);
  for (std::size_t left = transfer.bytes; left > 0;) {
    const auto run = static_cast<std::size_t>(std::min<std::uint64_t>(left, stripes_.run(socket.sent, end)));
    socket.sent = stripes_.next_on(index, socket.sent + run);
    left -= run;
  }
  return transfer.bytes == offered;
}

// Reads only when a reader could be stuck with what is there. That never loses an edge: a reader that waits has first
// seen less than it needs here, so every socket that could bring it on was read to its end after the last edge.
std::span<const std::byte> TcpLink::peek_some(std::size_t wanted) {
  aborted_.check(peer_);
  const std::size_t needed = std::min(wanted, kPeekMinimum);
  if (available() < needed) fill(consumed_ + std::min<std::uint64_t>(wanted, capacity_));
  const auto count = static_cast<std::size_t>(available());
  if (count < needed) [[unlikely]] {
    const Socket& socket = slowest();
    if (socket.ended.closed) {
      if (count == 0 || cut_end_.shown(count)) throw_lost(socket, socket.ended);
      waker_.notify();
    }
  }
  return {buffer_.data() + consumed_ % capacity_, std::min(wanted, count)};
}

/// Takes bytes up to position `end` into the buffer.
void TcpLink::fill(std::uint64_t end) {
  // The buffer is a window of the stream: the place of consumed bytes is free again.
  const std::uint64_t origin = consumed_ - consumed_ % capacity_;
  for (Socket& socket : sockets_) {
    if (socket.received < end && !socket.ended.closed) read_from(socket, {origin, buffer_.data()}, end);
  }
  in_order_ = slowest().received;
}

/// Reads from one socket what belongs before `end`, until it has no more.
void TcpLink::read_from(Socket& socket, Place place, std::uint64_t end) {
  const std::size_t index = index_of(socket);
  while (socket.received < end) {
    std::size_t count = 0;
    std::size_t asked = 0;
    for (std::uint64_t at = socket.received; at < end && count < pieces_.size(); at = stripes_.next_on(index, at)) {
      const auto run = static_cast<std::size_t>(stripes_.run(at, end));
      pieces_[count++] = {place.data + (at - place.begin), run};
      asked += run;
      at += run;
    }
    const Transfer transfer = read_into(socket.fd.get(), std::span(pieces_).first(count));
    for (std::size_t left = transfer.bytes; left > 0;) {
      const auto run = static_cast<std::size_t>(std::min<std::uint64_t>(left, stripes_.run(socket.received, end)));
      socket.received = stripes_.next_on(index, socket.received + run);
      left -= run;
    }
    if (transfer.closed) socket.ended = transfer;
    if (transfer.bytes < asked) return;
  }
}

// Bytes that peek() had taken into the buffer move by copy, all others go straight from the kernel to their place.
std::size_t TcpLink::try_receive(std::span<std::byte> into) {
  aborted_.check(peer_);
  if (into.empty()) return 0;
  const std::uint64_t end = consumed_ + into.size();
  const Place place{consumed_, into.data()};
  for (Socket& socket : sockets_) {
    empty_buffer(socket, place, end);
    if (socket.received >= end || socket.ended.closed) continue;
    read_from(socket, place, end);
    socket.copied = socket.received;
  }
  const Socket& last = slowest();
  in_order_ = last.received;
  const auto count = static_cast<std::size_t>(std::min(in_order_, end) - consumed_);
  if (count == 0 && last.ended.closed) [[unlikely]]
    throw_lost(last, last.ended);
  consumed_ += count;
  return count;
}

void TcpLink::empty_buffer(Socket& socket, Place place, std::uint64_t end) {
  const std::size_t index = index_of(socket);
  const std::uint64_t have = std::min(socket.received, end);
  std::uint64_t at = stripes_.next_on(index, std::max(socket.copied, consumed_));
  while (at < have) {
    const std::uint64_t run = stripes_.run(at, have);
    std::memcpy(place.data + (at - place.begin), buffer_.data() + at % capacity_, static_cast<std::size_t>(run));
    at = stripes_.next_on(index, at + run);
  }
  socket.copied = std::max(socket.copied, at);
}

void TcpLink::consume(std::size_t bytes) {
  aborted_.check(peer_);
  RINGTUNE_CHECK_LE(bytes, available(), "consumed more than was shown");
  consumed_ += bytes;
}

void TcpLink::abort(const std::string& reason) noexcept {
  aborted_.give(reason);
  waker_.notify();
}

void TcpLink::throw_lost(const Socket& socket, const Transfer& transfer) const {
  const std::string which = sockets_.size() == 1 ? ""
                                                 : "socket " + std::to_string(index_of(socket) + 1) + " of " +
                                                       std::to_string(sockets_.size()) + ": ";
  throw PeerLost(peer_, peer_name_ + " is lost: " + which + describe(transfer));
}

}  // namespace ringtune
