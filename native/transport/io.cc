#include "transport/io.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/check.h"
#include "base/error.h"

namespace ringtune {
namespace {

void wait_or_throw(const Link& link, Waker& waker, std::uint32_t ticket, Deadline deadline, const char* what) {
  if (deadline.expired()) {
    throw Timeout(std::string("timed out while ") + what + " rank " + std::to_string(link.peer()) + " (" +
                  std::string(link.kind()) + " link): it is alive but did not keep up or never came to this operation");
  }
  waker.wait(ticket, deadline);
}

std::uint32_t frame_length(const std::byte (&header)[4]) {
  std::uint32_t length = 0;
  for (int i = 3; i >= 0; --i) length = (length << 8) | std::to_integer<std::uint32_t>(header[i]);
  return length;
}

}  // namespace

void send_all(Link& link, Waker& waker, std::span<const std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const std::uint32_t ticket = waker.prepare();
    const std::size_t sent = link.try_send(bytes);
    bytes = bytes.subspan(sent);
    if (sent == 0) wait_or_throw(link, waker, ticket, deadline, "sending to");
  }
}

void recv_all(Link& link, Waker& waker, std::span<std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const std::uint32_t ticket = waker.prepare();
    const std::size_t count = link.try_receive(bytes);
    bytes = bytes.subspan(count);
    if (count == 0) wait_or_throw(link, waker, ticket, deadline, "receiving from");
  }
}

bool FrameReader::poll(Link& link) {
  if (complete_) {  // the caller is done with the last frame
    complete_ = false;
    have_ = header_have_ = 0;
  }
  while (header_have_ < sizeof(header_)) {
    const std::span<const std::byte> view = link.peek();
    if (view.empty()) return false;
    const std::size_t count = std::min(view.size(), sizeof(header_) - header_have_);
    std::memcpy(header_ + header_have_, view.data(), count);
    link.consume(count);
    header_have_ += count;
    if (header_have_ == sizeof(header_)) start_payload(link.peer());
  }
  while (have_ < frame_.size()) {
    const std::span<const std::byte> view = link.peek();
    if (view.empty()) return false;
    const std::size_t count = std::min(view.size(), frame_.size() - have_);
    std::memcpy(frame_.data() + have_, view.data(), count);
    link.consume(count);
    have_ += count;
  }
  complete_ = true;
  return true;
}

void FrameReader::start_payload(int peer) {
  const std::uint32_t length = frame_length(header_);
  if (length > kMaxBytes) {
    throw Protocol("rank " + std::to_string(peer) + " sent a frame of " + std::to_string(length) +
                   " bytes, more than the limit of " + std::to_string(kMaxBytes) +
                   ": it runs another version of ringtune or its stream is corrupt");
  }
  frame_.resize(length);
}

void FrameWriter::push(ByteView payload) {
  RINGTUNE_CHECK_LE(payload.size(), FrameReader::kMaxBytes, "a control frame");
  if (empty()) {  // forget what was sent, keep the capacity
    queue_.clear();
    sent_ = 0;
  }
  const auto length = static_cast<std::uint32_t>(payload.size());
  for (unsigned shift = 0; shift < 32; shift += 8) queue_.push_back(static_cast<std::byte>((length >> shift) & 0xffu));
  queue_.insert(queue_.end(), payload.begin(), payload.end());
}

bool FrameWriter::poll(Link& link) {
  while (!empty()) {
    const std::size_t sent = link.try_send(std::span(queue_).subspan(sent_));
    if (sent == 0) return false;
    sent_ += sent;
  }
  return true;
}

}  // namespace ringtune
