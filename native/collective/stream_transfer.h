// The loop under every collective here: one stream of bytes out to `next`, one in from `prev`, both cut into pieces of
// the same buffer. What makes a ring (or a chain) is only which pieces, in which order, and how far the sender may run
// ahead of the receiver. Internal to collective/.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "collective/activity.h"
#include "collective/agreement_header.h"
#include "collective/group.h"
#include "collective/pack_pipeline.h"
#include "collective/ring_schedule.h"

namespace ringtune {

/// A position in a list of pieces that are walked in order as one stream.
class PieceCursor {
 public:
  explicit PieceCursor(std::span<const ChunkRange> pieces);
  [[nodiscard]] bool done() const noexcept { return index_ == pieces_.size(); }
  [[nodiscard]] std::size_t passed() const noexcept { return passed_; }  // bytes of the stream behind the cursor
  [[nodiscard]] std::size_t index() const noexcept { return index_; }
  [[nodiscard]] std::size_t at() const noexcept { return pieces_[index_].begin + offset_; }  // in the buffer
  [[nodiscard]] bool at_begin() const noexcept { return offset_ == 0; }                      // of a piece
  [[nodiscard]] std::size_t left_in_piece() const noexcept { return pieces_[index_].size - offset_; }
  /// The segment under the cursor, whole.
  [[nodiscard]] ChunkRange segment(std::size_t segment_bytes) const noexcept;
  /// Bytes to the end of the segment under the cursor: pieces are cut at multiples of `segment_bytes` from their begin.
  [[nodiscard]] std::size_t left_in_segment(std::size_t segment_bytes) const noexcept;
  /// Bytes from the cursor that lie in whole segments of this piece when the first `ready` bytes of the stream are.
  [[nodiscard]] std::size_t sendable(std::size_t ready, std::size_t segment_bytes) const noexcept;
  void advance(std::size_t bytes) noexcept;  // <= left_in_piece()

 private:
  void skip_empty() noexcept;
  std::span<const ChunkRange> pieces_;
  std::size_t index_ = 0;
  std::size_t offset_ = 0;
  std::size_t passed_ = 0;
};

/// What is done with the bytes that arrive.
struct Arrival {
  std::size_t reduced_pieces = 0;  // so many first pieces of `recv` are reduced into the buffer, the others copied
  DType dtype = DType::kUint8;
  ReduceOp op = ReduceOp::kSum;
};

struct StreamTransfer {
  std::string_view what;              // "ring allreduce", for messages
  std::vector<ChunkRange> send = {};  // to next, in this order; empty: nothing
  std::vector<ChunkRange> recv = {};  // from prev
  std::size_t ready_bytes = 0;        // of the send stream before anything has arrived; each byte that arrives adds one
  Arrival arrival = {};
  std::size_t segment_bytes = 0;
  AgreementHeader* agreement = nullptr;  // if there is one it is in front of every piece that is not empty; borrowed
  const AgreementHeader* decided = nullptr;  // instead: all its votes are known when this begins; borrowed
  PackPipeline* packer =
      nullptr;  // brings what is sent before anything has arrived, and what arrivals are reduced into
  PackPipeline* unpacker = nullptr;  // takes what the last reduced piece and the copied ones become
};

/// Runs both streams to their ends. A segment is sent on as soon as it is complete in the buffer. Deadlock-free for any
/// capacity of the links: what arrives can always be taken in, because a byte is overwritten only by a value that
/// depends on that byte having been sent.
[[nodiscard]] ActivityPtr start_transfer(const Group& group, std::span<std::byte> data, StreamTransfer transfer);

/// The same from begin to end. Blocks; throws PeerLost, Timeout (no byte moved for group.idle_timeout_ns).
void run_transfer(const Group& group, std::span<std::byte> data, const StreamTransfer& transfer);

}  // namespace ringtune
