#include "transport/wire.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "base/check.h"
#include "base/error.h"

namespace ringtune {
namespace {

constexpr std::size_t kReadBytes = 64 << 10;
constexpr std::size_t kHeaderBytes = 4;
constexpr std::size_t kKeptBytes = 1 << 20;  // of a buffer's memory, while nothing is in it

}  // namespace

void append_frame(Bytes& out, ByteView payload) {
  RINGTUNE_CHECK_LE(payload.size(), std::numeric_limits<std::uint32_t>::max(), "a frame");
  ByteWriter header;
  header.u32(static_cast<std::uint32_t>(payload.size()));
  out.insert(out.end(), header.bytes().begin(), header.bytes().end());
  out.insert(out.end(), payload.begin(), payload.end());
}

void FrameAssembler::release_if_empty() noexcept {
  if (begin_ < end_ || buffer_.size() <= kKeptBytes) return;
  buffer_ = Bytes();
  begin_ = end_ = 0;
}

std::span<std::byte> FrameAssembler::space() {
  release_if_empty();
  if (begin_ > 0) {  // keep the unread rest at the front
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (most_held_ > 0) {
    if (end_ >= most_held_) throw Protocol("more than " + std::to_string(most_held_) + " bytes before its proof");
    buffer_.resize(most_held_);
    return std::span(buffer_).subspan(end_);
  }
  if (buffer_.size() < end_ + kReadBytes) {
    std::size_t wanted = 2 * end_ + kReadBytes;
    // No more than the frame that is coming in needs, as far as it has come: a length alone claims nothing.
    if (end_ >= kHeaderBytes) {
      wanted = std::min(wanted, std::max(kHeaderBytes + ByteReader(buffer_).u32(), end_) + kReadBytes);
    }
    buffer_.reserve(wanted);
    buffer_.resize(wanted);
  }
  return std::span(buffer_).subspan(end_);
}

std::optional<ByteView> FrameAssembler::next() {
  release_if_empty();
  const ByteView unread = ByteView(buffer_).subspan(begin_, end_ - begin_);
  if (unread.size() < kHeaderBytes) return std::nullopt;
  const std::size_t length = ByteReader(unread).u32();
  if (length > max_frame_bytes_) {
    throw Protocol("a frame of " + std::to_string(length) + " bytes exceeds the limit of " +
                   std::to_string(max_frame_bytes_));
  }
  if (unread.size() < kHeaderBytes + length) return std::nullopt;
  begin_ += kHeaderBytes + length;
  return unread.subspan(kHeaderBytes, length);
}

std::optional<ByteView> FrameAssembler::take_raw(std::size_t count) {
  if (end_ - begin_ < count) return std::nullopt;
  const ByteView raw = ByteView(buffer_).subspan(begin_, count);
  begin_ += count;
  return raw;
}

void SendQueue::sent(std::size_t count) noexcept {
  sent_ += count;
  if (sent_ < bytes_.size()) return;
  bytes_.clear();
  if (bytes_.capacity() > kKeptBytes) bytes_ = Bytes();
  sent_ = 0;
}

}  // namespace ringtune
