#include "collective/stream_transfer.h"

#include <algorithm>
#include <sstream>

#include "base/check.h"
#include "base/error.h"
#include "collective/progress.h"
#include "device/cpu_kernels.h"

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

class Runner {
 public:
  Runner(const Group& group, std::span<std::byte> data, const StreamTransfer& transfer)
      : group_(group),
        data_(data),
        transfer_(transfer),
        send_(transfer.send),
        recv_(transfer.recv),
        element_bytes_(size_of(transfer.arrival.dtype)) {}

  void run() {
    advance_until(
        *group_.waker, group_.idle_timeout_ns, [&] { return send_.done() && recv_.done(); },
        [&] { return send_some() | receive_some(); }, [&] { throw_timeout(); });
  }

 private:
  bool send_some() {
    if (send_.done()) return false;
    const std::size_t ready = transfer_.ready_bytes + recv_.passed();
    const std::size_t limit = send_.sendable(ready, transfer_.segment_bytes);
    if (limit == 0) return false;
    const std::size_t sent = group_.next->try_send(data_.subspan(send_.at(), limit));
    if (sent > 0) send_.advance(sent);
    return sent > 0;
  }

  /// At most to the end of the segment, so that it is sent on before the next one is worked on.
  bool receive_some() {
    if (recv_.done()) return false;
    const std::size_t wanted = recv_.left_in_segment(transfer_.segment_bytes);
    std::byte* const target = data_.data() + recv_.at();
    if (recv_.index() >= transfer_.arrival.reduced_pieces) {
      const std::size_t received = group_.prev->try_receive({target, wanted});
      if (received > 0) recv_.advance(received);
      return received > 0;
    }
    const std::span<const std::byte> arrived = group_.prev->peek_some(wanted);
    // A byte stream may stop inside an element: that one waits for its rest.
    const std::size_t bytes = arrived.size() - arrived.size() % element_bytes_;
    if (bytes == 0) return false;
    reduce_into(target, arrived.data(), bytes / element_bytes_, transfer_.arrival.dtype, transfer_.arrival.op);
    group_.prev->consume(bytes);
    recv_.advance(bytes);
    return true;
  }

  [[noreturn]] void throw_timeout() const {
    std::ostringstream out;
    out << transfer_.what << ": no byte moved for " << static_cast<double>(group_.idle_timeout_ns) * 1e-9
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
    throw Timeout(out.str());
  }

  const Group& group_;
  std::span<std::byte> data_;
  const StreamTransfer& transfer_;
  PieceCursor send_;
  PieceCursor recv_;
  std::size_t element_bytes_;
};

}  // namespace

void run_transfer(const Group& group, std::span<std::byte> data, const StreamTransfer& transfer) {
  RINGTUNE_CHECK_GE(transfer.segment_bytes, std::size_t{1});
  RINGTUNE_CHECK(group.waker != nullptr && (transfer.send.empty() || group.next != nullptr) &&
                     (transfer.recv.empty() || group.prev != nullptr),
                 "a group of ", group.size, " ranks without its links");
  Runner(group, data, transfer).run();
}

}  // namespace ringtune
