// A link over a shared segment: between processes ("shm") or between threads ("inproc").
#pragma once

#include <memory>
#include <string>

#include "transport/byte_ring.h"
#include "transport/link.h"
#include "transport/link_table.h"
#include "transport/segment.h"
#include "transport/waker.h"

namespace ringtune {

struct RingLinkParts {
  std::string_view kind;  // a literal: "shm" or "inproc"
  int peer = 0;
  std::string peer_name;                   // for messages, e.g. "rank 1 on host a"
  SegmentSide side = SegmentSide::kLower;  // of this rank
  std::shared_ptr<const DuplexSegment> segment;
  std::shared_ptr<Bell> peer_bell;
  Waker* waker = nullptr;  // this rank's; borrowed, outlives the link
};

/// Shares the segment and the peer's bell. One thread at a time, except abort(). Never blocks.
class RingLink final : public Link {
 public:
  explicit RingLink(RingLinkParts parts);
  ~RingLink() override;  // tells the peer that this side is closed
  RingLink(const RingLink&) = delete;
  RingLink& operator=(const RingLink&) = delete;

  [[nodiscard]] int peer() const noexcept override { return parts_.peer; }
  [[nodiscard]] std::string_view kind() const noexcept override { return parts_.kind; }
  std::size_t try_send(std::span<const std::byte> bytes) override;
  [[nodiscard]] std::span<const std::byte> peek() override;
  void consume(std::size_t bytes) override;
  void abort(const std::string& reason) noexcept override;

 private:
  [[nodiscard]] bool peer_closed() const noexcept { return parts_.segment->closed(other(parts_.side)); }
  [[noreturn]] void throw_closed() const;

  RingLinkParts parts_;
  RingSender sender_;
  RingReceiver receiver_;
  AbortState aborted_;
  CutEnd cut_end_;
};

}  // namespace ringtune
