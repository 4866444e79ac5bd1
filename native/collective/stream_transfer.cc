#include "collective/stream_transfer.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "device/cpu_kernels.h"
#include "trace/piece_log.h"

namespace ringtune {

PieceCursor::PieceCursor(std::span<const ChunkRange> pieces) : pieces_(pieces) { skip_empty(); }

void PieceCursor::skip_empty() noexcept {
  while (index_ < pieces_.size() && offset_ == pieces_[index_].size) {
    ++index_;
    offset_ = 0;
  }
}

std::size_t PieceCursor::left_in_segment(std::size_t segment_bytes) const noexcept {
  return std::min(segment_bytes - offset_ % segment_bytes, left_in_piece());
}

ChunkRange PieceCursor::segment(std::size_t segment_bytes) const noexcept {
  const std::size_t begin = offset_ / segment_bytes * segment_bytes;
  return {pieces_[index_].begin + begin, std::min(segment_bytes, pieces_[index_].size - begin)};
}

std::size_t PieceCursor::sendable(std::size_t ready, std::size_t segment_bytes) const noexcept {
  const std::size_t ahead = ready - passed_;
  if (ahead >= left_in_piece()) return left_in_piece();
  const std::size_t whole = (offset_ + ahead) / segment_bytes * segment_bytes;
  return whole > offset_ ? whole - offset_ : 0;
}

void PieceCursor::advance(std::size_t bytes) noexcept {
  offset_ += bytes;
  passed_ += bytes;
  skip_empty();
}

namespace {

class TransferRun final : public Activity {
 public:
  TransferRun(const Group& group, std::span<std::byte> data, StreamTransfer transfer)
      : group_(group),
        data_(data),
        transfer_(std::move(transfer)),
        what_(transfer_.what),
        send_(transfer_.send),
        recv_(transfer_.recv),
        element_bytes_(size_of(transfer_.arrival.dtype)) {}
  TransferRun(const TransferRun&) = delete;  // the cursors look into transfer_
  TransferRun& operator=(const TransferRun&) = delete;

  bool advance() override { return send_some() | receive_some(); }
  [[nodiscard]] bool done() const override { return send_.done() && recv_.done() && staged_.empty(); }

  [[nodiscard]] std::string complaint() const override {
    std::ostringstream out;
    out << what_ << ": no byte moved for " << static_cast<double>(group_.idle_timeout_ns) * 1e-9
        << " s while waiting for";
    const char* separator = " ";
    if (!recv_.done()) {
      out << separator << "rank " << group_.prev->peer() << " to send";
      separator = " and ";
    }
    // Only a sender with something in hand waits for its peer; otherwise it waits for what it is to pass on.
    const std::size_t ready = transfer_.ready_bytes + recv_.passed();
    if (!send_.done() && send_.sendable(ready, transfer_.segment_bytes) > 0) {
      out << separator << "rank " << group_.next->peer() << " to receive";
    }
    out << " (" << send_.passed() << " bytes sent, " << recv_.passed()
        << " received); is that process stopped, or the network down?";
    return out.str();
  }

 private:
  bool send_some() {
    if (!staged_.empty()) return send_staged();
    if (send_.done()) return false;
    const std::size_t ready = transfer_.ready_bytes + recv_.passed();
    const std::size_t limit = filled(send_.sendable(ready, transfer_.segment_bytes));
    if (limit == 0) return false;
    const std::span<const std::byte> bytes = data_.subspan(send_.at(), limit);
    if (transfer_.agreement != nullptr && send_.at_begin()) {
      // What has arrived was headed by what the sender knew then, so this piece passes on all that led to it.
      transfer_.agreement->stage(bytes, staged_);
      send_.advance(staged_.size() - AgreementHeader::kHeaderBytes);
      return send_staged();
    }
    const std::size_t sent = group_.next->try_send(bytes);
    if (sent > 0) send_.advance(sent);
    return sent > 0;
  }

  /// Of `limit` bytes to be sent, those that are in the buffer; brings a segment when there are none.
  std::size_t filled(std::size_t limit) {
    if (transfer_.packer == nullptr || limit == 0 || send_.passed() >= transfer_.ready_bytes) return limit;
    if (send_.passed() == send_filled_) {
      const std::size_t bytes = std::min(send_.left_in_segment(transfer_.segment_bytes), limit);
      transfer_.packer->stage_in({send_.at(), bytes});
      send_filled_ += bytes;
    }
    return std::min(limit, send_filled_ - send_.passed());
  }

  bool send_staged() {
    const std::size_t sent = group_.next->try_send(std::span(staged_).subspan(staged_sent_));
    staged_sent_ += sent;
    if (staged_sent_ == staged_.size()) {
      staged_.clear();
      staged_sent_ = 0;
    }
    return sent > 0;
  }

  /// At most to the end of the segment, so that it is sent on before the next one is worked on.
  bool receive_some() {
    if (recv_.done()) return false;
    const std::size_t wanted = recv_.left_in_segment(transfer_.segment_bytes);
    if (transfer_.packer != nullptr && recv_.passed() == recv_filled_) {
      if (recv_.index() < transfer_.arrival.reduced_pieces) transfer_.packer->stage_in({recv_.at(), wanted});
      recv_filled_ += wanted;
    }
    if (transfer_.agreement != nullptr && recv_.at_begin() && !headed_) {
      headed_ = transfer_.agreement->take(*group_.prev, wanted);
      if (!headed_) return false;
    }
    const std::size_t bytes = take({data_.data() + recv_.at(), wanted});
    if (bytes == 0) return false;
    headed_ = false;
    const ChunkRange segment = recv_.segment(transfer_.segment_bytes);
    const bool result = recv_.index() + 1 >= transfer_.arrival.reduced_pieces;
    recv_.advance(bytes);
    if (transfer_.unpacker != nullptr && result && bytes == wanted && agreed()) transfer_.unpacker->stage_out(segment);
    return true;
  }

  /// The header of a result's first bytes was written after all ranks had voted.
  [[nodiscard]] bool agreed() const {
    const AgreementHeader* const agreement = transfer_.agreement != nullptr ? transfer_.agreement : transfer_.decided;
    if (agreement == nullptr) return true;
    RINGTUNE_CHECK(agreement->known_ns() != 0, "a result without all votes");
    return !agreement->against();
  }

  std::size_t take(std::span<std::byte> target) {
    if (recv_.index() >= transfer_.arrival.reduced_pieces) return group_.prev->try_receive(target);
    const std::span<const std::byte> arrived = group_.prev->peek_some(target.size());
    // A byte stream may stop inside an element: that one waits for its rest.
    const std::size_t bytes = arrived.size() - arrived.size() % element_bytes_;
    if (bytes == 0) return 0;
    reduce_into(target.data(), arrived.data(), bytes / element_bytes_, transfer_.arrival.dtype, transfer_.arrival.op);
    group_.prev->consume(bytes);
    return bytes;
  }

  Group group_;
  std::span<std::byte> data_;
  StreamTransfer transfer_;
  std::string what_;
  PieceCursor send_;
  PieceCursor recv_;
  std::size_t element_bytes_;
  std::size_t send_filled_ = 0;  // of the streams: what is in the buffer already
  std::size_t recv_filled_ = 0;
  std::vector<std::byte> staged_;  // a header and the bytes after it
  std::size_t staged_sent_ = 0;
  bool headed_ = false;  // the header of the piece that begins here has been taken
};

}  // namespace

ActivityPtr start_transfer(const Group& group, std::span<std::byte> data, StreamTransfer transfer) {
  RINGTUNE_CHECK_GE(transfer.segment_bytes, std::size_t{1});
  RINGTUNE_CHECK(group.waker != nullptr && (transfer.send.empty() || group.next != nullptr) &&
                     (transfer.recv.empty() || group.prev != nullptr),
                 "a group of ", group.size, " ranks without its links");
  return std::make_unique<TransferRun>(group, data, std::move(transfer));
}

void run_transfer(const Group& group, std::span<std::byte> data, const StreamTransfer& transfer) {
  std::size_t bytes = 0;
  for (const ChunkRange& piece : transfer.recv) bytes += piece.size;
  const PieceTimer timer(Piece::kExchange, bytes);
  finish(*start_transfer(group, data, transfer), *group.waker, group.idle_timeout_ns);
}

}  // namespace ringtune
