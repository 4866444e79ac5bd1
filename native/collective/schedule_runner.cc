#include "collective/schedule_runner.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "device/cpu_kernels.h"
#include "trace/piece_log.h"

namespace ringtune {
namespace {

// Where contributions are folded in the other order: stays in the first-level cache.
constexpr std::size_t kTurnBytes = 16 << 10;

struct Outgoing {
  Link* link;
  ChunkRange range;
  std::size_t sent = 0;  // or copied to `staged`
  std::vector<std::byte> staged = {};
  std::size_t staged_sent = 0;
  [[nodiscard]] bool done() const noexcept { return sent == range.size && staged_sent == staged.size(); }
};

struct Incoming {
  Link* link;
  ChunkRange range;
  Fold fold;
  bool header_due;
  std::size_t received = 0;
  [[nodiscard]] bool done() const noexcept { return received == range.size && !header_due; }
  [[nodiscard]] std::size_t at() const noexcept { return range.begin + received; }
};

class ScheduleRun final : public Activity {
 public:
  ScheduleRun(const Mesh& mesh, std::span<std::byte> data, Schedule schedule, const ScheduleJob& job)
      : mesh_(mesh),
        data_(data),
        schedule_(std::move(schedule)),
        what_(job.what),
        dtype_(job.dtype),
        op_(job.op),
        agreement_(job.agreement),
        element_bytes_(size_of(job.dtype)) {}

  bool advance() override {
    bool moved = false;
    while (!done()) {
      if (!begun_) begin_step();
      moved = move() || moved;
      if (!step_done()) break;
      record_step();
      ++at_;
      begun_ = false;
      moved = true;
    }
    return moved;
  }

  [[nodiscard]] bool done() const override { return at_ == schedule_.size(); }

  [[nodiscard]] std::string complaint() const override {
    std::ostringstream out;
    out << what_ << ": no byte moved for " << static_cast<double>(mesh_.idle_timeout_ns()) * 1e-9
        << " s while waiting for";
    const char* separator = " ";
    for (const Incoming& receive : receives_) {
      if (receive.done()) continue;
      out << separator << "rank " << receive.link->peer() << " to send";
      separator = " and ";
    }
    for (const Outgoing& send : sends_) {
      if (send.done()) continue;
      out << separator << "rank " << send.link->peer() << " to receive";
      separator = " and ";
    }
    out << "; is that process stopped, or the network down?";
    return out.str();
  }

 private:
  /// At full detail only.
  void record_step() const {
    PieceLog* const log = PieceLog::current();
    if (log == nullptr || step_ns_ == 0) return;
    std::size_t bytes = 0;
    for (const Incoming& receive : receives_) bytes += receive.range.size;
    log->add(Piece::kExchange, step_ns_, bytes);
  }

  void begin_step() {
    const Step& step = schedule_[at_];
    begun_ = true;
    step_ns_ = PieceLog::current() != nullptr ? now_ns() : 0;
    sends_.clear();
    receives_.clear();
    for (const Send& send : step.sends) {
      Outgoing& out = sends_.emplace_back(Outgoing{.link = &mesh_.link(send.peer), .range = send.range});
      if (agreement_ == nullptr) continue;
      agreement_->stage(data_.subspan(send.range.begin, send.range.size), out.staged);
      out.sent = out.staged.size() - AgreementHeader::kHeaderBytes;
    }
    for (const Receive& receive : step.receives) {
      receives_.push_back({&mesh_.link(receive.peer), receive.range, receive.fold, agreement_ != nullptr});
    }
  }

  [[nodiscard]] bool step_done() const {
    const auto done = [](const auto& transfer) { return transfer.done(); };
    return std::all_of(sends_.begin(), sends_.end(), done) && std::all_of(receives_.begin(), receives_.end(), done);
  }

  bool move() {
    bool moved = false;
    for (Outgoing& send : sends_) moved = push(send) || moved;
    for (Incoming& receive : receives_) {
      if (receive.header_due) {
        if (!agreement_->take(*receive.link, receive.range.size)) continue;
        receive.header_due = false;
        moved = true;
      }
      if (receive.done()) continue;
      const std::size_t count = take(receive, free_bytes(receive));
      receive.received += count;
      moved = moved || count > 0;
    }
    return moved;
  }

  bool push(Outgoing& send) {
    if (send.done()) return false;
    if (send.staged_sent < send.staged.size()) {
      const std::size_t count = send.link->try_send(std::span(send.staged).subspan(send.staged_sent));
      send.staged_sent += count;
      if (send.staged_sent < send.staged.size() || send.done()) return count > 0;
    }
    const std::size_t count =
        send.link->try_send(data_.subspan(send.range.begin + send.sent, send.range.size - send.sent));
    send.sent += count;
    return count > 0;
  }

  /// Bytes of this transfer that may be overwritten now: what is still to be sent must stay.
  [[nodiscard]] std::size_t free_bytes(const Incoming& receive) const noexcept {
    std::size_t end = receive.range.begin + receive.range.size;
    for (const Outgoing& send : sends_) {
      const std::size_t send_end = send.range.begin + send.range.size;
      if (!send.done() && send.range.begin < end && send_end > receive.at()) {
        end = std::min(end, std::max(send.range.begin + send.sent, receive.at()));
      }
    }
    return end - receive.at();
  }

  std::size_t take(Incoming& receive, std::size_t wanted) {
    if (receive.fold == Fold::kCopy) return receive.link->try_receive(data_.subspan(receive.at(), wanted));
    // A byte stream may stop inside an element: that one waits for its rest.
    wanted -= wanted % element_bytes_;
    if (wanted == 0) return 0;
    const std::span<const std::byte> arrived = receive.link->peek_some(wanted);
    const std::size_t bytes = arrived.size() - arrived.size() % element_bytes_;
    if (bytes == 0) return 0;
    if (receive.fold == Fold::kAfter) {
      reduce_into(data_.data() + receive.at(), arrived.data(), bytes / element_bytes_, dtype_, op_);
    } else {
      fold_before(receive.at(), arrived.first(bytes));
    }
    receive.link->consume(bytes);
    return bytes;
  }

  void fold_before(std::size_t at, std::span<const std::byte> arrived) {
    for (std::size_t done = 0; done < arrived.size();) {
      const std::size_t bytes = std::min(arrived.size() - done, kTurnBytes);
      std::byte* const own = data_.data() + at + done;
      std::memcpy(turn_.data(), arrived.data() + done, bytes);
      reduce_into(turn_.data(), own, bytes / element_bytes_, dtype_, op_);
      std::memcpy(own, turn_.data(), bytes);
      done += bytes;
    }
  }

  const Mesh& mesh_;
  std::span<std::byte> data_;
  Schedule schedule_;
  std::string what_;
  DType dtype_;
  ReduceOp op_;
  AgreementHeader* agreement_;
  std::size_t element_bytes_;
  std::size_t at_ = 0;  // in the schedule
  bool begun_ = false;  // that step
  std::int64_t step_ns_ = 0;
  std::vector<Outgoing> sends_;
  std::vector<Incoming> receives_;
  alignas(64) std::array<std::byte, kTurnBytes> turn_;
};

}  // namespace

ActivityPtr start_schedule(Mesh& mesh, std::span<std::byte> data, Schedule schedule, const ScheduleJob& job) {
  std::vector<int> peers;
  for (const Step& step : schedule) {
    for (const Send& send : step.sends) peers.push_back(send.peer);
    for (const Receive& receive : step.receives) peers.push_back(receive.peer);
  }
  mesh.prepare(peers);
  return std::make_unique<ScheduleRun>(mesh, data, std::move(schedule), job);
}

}  // namespace ringtune
