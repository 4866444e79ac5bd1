#include "transport/tcp_link.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace ringtune {
namespace {

constexpr std::size_t kSmallestBufferBytes = 4096;
// One read: large enough to make the system call cheap, small enough that the bytes are still cached when used.
constexpr std::size_t kReadBytes = 256 << 10;

}  // namespace

TcpLink::TcpLink(Fd fd, int peer, std::string peer_name, Waker& waker, std::size_t buffer_bytes)
    : fd_(std::move(fd)),
      peer_(peer),
      peer_name_(std::move(peer_name)),
      waker_(waker),
      buffer_(std::max(buffer_bytes, kSmallestBufferBytes)) {
  keep_alive(fd_.get());
  // Both directions from the start: watches are edge-triggered, and the kernel reports room to write only after a send
  // found none, so an idle or fast link costs no wake-ups and no further system calls.
  waker_.watch(fd_.get(), true);
}

TcpLink::~TcpLink() { waker_.unwatch(fd_.get()); }

std::size_t TcpLink::try_send(std::span<const std::byte> bytes) {
  aborted_.check(peer_);
  if (bytes.empty()) return 0;
  const Transfer transfer = write_some(fd_.get(), bytes);
  if (transfer.closed) [[unlikely]]
    throw_lost(transfer);
  return transfer.bytes;
}

// Reads only when a reader could be stuck with what is there. That never loses an edge: a reader that waits has first
// seen less than kPeekMinimum here, so the socket was read to its end after the last edge that it consumed.
std::span<const std::byte> TcpLink::peek() {
  aborted_.check(peer_);
  if (end_ - begin_ < kPeekMinimum) fill();
  if (ended_.closed && end_ - begin_ < kPeekMinimum) [[unlikely]] {
    if (begin_ == end_ || cut_end_.shown(end_ - begin_)) throw_lost(ended_);
    waker_.notify();
  }
  return std::span(buffer_).subspan(begin_, end_ - begin_);
}

void TcpLink::fill() {
  if (ended_.closed) return;
  // Move the rest of a partial element (less than kPeekMinimum bytes) to the front.
  std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
  const std::size_t room = std::min(buffer_.size() - end_, kReadBytes);
  const Transfer transfer = read_some(fd_.get(), std::span(buffer_).subspan(end_, room));
  end_ += transfer.bytes;
  if (transfer.closed) ended_ = transfer;
}

void TcpLink::consume(std::size_t bytes) {
  aborted_.check(peer_);
  RINGTUNE_CHECK_LE(bytes, end_ - begin_, "consumed more than was shown");
  begin_ += bytes;
}

void TcpLink::abort(const std::string& reason) noexcept {
  aborted_.give(reason);
  waker_.notify();
}

void TcpLink::throw_lost(const Transfer& transfer) const {
  throw PeerLost(peer_, peer_name_ + " is lost: " + describe(transfer));
}

}  // namespace ringtune
