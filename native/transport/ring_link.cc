#include "transport/ring_link.h"

#include <utility>

#include "base/error.h"

namespace ringtune {

RingLink::RingLink(RingLinkParts parts)
    : parts_(std::move(parts)),
      sender_(parts_.segment->ring_of(parts_.side), *parts_.peer_bell),
      receiver_(parts_.segment->ring_of(other(parts_.side)), *parts_.peer_bell) {}

RingLink::~RingLink() {
  parts_.segment->mark_closed(parts_.side);
  parts_.peer_bell->notify();
}

std::size_t RingLink::try_send(std::span<const std::byte> bytes) {
  aborted_.check(parts_.peer);
  // Nothing to send is no reason to complain: what the peer sent before it closed may still be unread.
  if (!bytes.empty() && peer_closed()) [[unlikely]]
    throw_closed();
  return sender_.write(bytes);
}

std::span<const std::byte> RingLink::peek() {
  aborted_.check(parts_.peer);
  std::span<const std::byte> view = receiver_.peek();
  if (view.size() < kPeekMinimum && peer_closed()) [[unlikely]] {
    view = receiver_.peek();  // bytes that came between the two looks: deliver all before the end
    if (view.empty()) throw_closed();
    if (view.size() < kPeekMinimum) {
      if (cut_end_.shown(view.size())) throw_closed();
      parts_.waker->notify();
    }
  }
  return view;
}

void RingLink::consume(std::size_t bytes) {
  aborted_.check(parts_.peer);
  receiver_.consume(bytes);
}

void RingLink::abort(const std::string& reason) noexcept {
  aborted_.give(reason);
  parts_.waker->notify();
}

void RingLink::throw_closed() const {
  throw PeerLost(parts_.peer, parts_.peer_name + " closed its " + std::string(parts_.kind) + " link");
}

}  // namespace ringtune
