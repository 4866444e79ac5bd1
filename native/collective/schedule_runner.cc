#include "collective/schedule_runner.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <sstream>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "collective/progress.h"
#include "device/cpu_kernels.h"

namespace ringtune {
namespace {

// Where contributions are folded in the other order: stays in the first-level cache.
constexpr std::size_t kTurnBytes = 16 << 10;

struct Outgoing {
  Link* link;
  ChunkRange range;
  std::size_t sent = 0;
  [[nodiscard]] bool done() const noexcept { return sent == range.size; }
};

struct Incoming {
  Link* link;
  ChunkRange range;
  Fold fold;
  std::size_t received = 0;
  [[nodiscard]] bool done() const noexcept { return received == range.size; }
  [[nodiscard]] std::size_t at() const noexcept { return range.begin + received; }
};

class StepRunner {
 public:
  StepRunner(const Mesh& mesh, std::span<std::byte> data, const ScheduleJob& job)
      : mesh_(mesh), data_(data), job_(job), element_bytes_(size_of(job.dtype)) {}

  void run(const Step& step) {
    sends_.clear();
    receives_.clear();
    for (const Send& send : step.sends) sends_.push_back({&mesh_.link(send.peer), send.range});
    for (const Receive& receive : step.receives) {
      receives_.push_back({&mesh_.link(receive.peer), receive.range, receive.fold});
    }
    const auto done = [](const auto& transfer) { return transfer.done(); };
    advance_until(
        mesh_.waker(), mesh_.idle_timeout_ns(),
        [&] {
          return std::all_of(sends_.begin(), sends_.end(), done) &&
                 std::all_of(receives_.begin(), receives_.end(), done);
        },
        [&] { return advance(); }, [&] { throw_timeout(); });
  }

 private:
  bool advance() {
    bool moved = false;
    for (Outgoing& send : sends_) {
      if (send.done()) continue;
      const std::size_t count =
          send.link->try_send(data_.subspan(send.range.begin + send.sent, send.range.size - send.sent));
      send.sent += count;
      moved = moved || count > 0;
    }
    for (Incoming& receive : receives_) {
      if (receive.done()) continue;
      const std::size_t count = take(receive, free_bytes(receive));
      receive.received += count;
      moved = moved || count > 0;
    }
    return moved;
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
      reduce_into(data_.data() + receive.at(), arrived.data(), bytes / element_bytes_, job_.dtype, job_.op);
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
      reduce_into(turn_.data(), own, bytes / element_bytes_, job_.dtype, job_.op);
      std::memcpy(own, turn_.data(), bytes);
      done += bytes;
    }
  }

  [[noreturn]] void throw_timeout() const {
    std::ostringstream out;
    out << job_.what << ": no byte moved for " << static_cast<double>(mesh_.idle_timeout_ns()) * 1e-9
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
    throw Timeout(out.str());
  }

  const Mesh& mesh_;
  std::span<std::byte> data_;
  const ScheduleJob& job_;
  std::size_t element_bytes_;
  std::vector<Outgoing> sends_;
  std::vector<Incoming> receives_;
  alignas(64) std::array<std::byte, kTurnBytes> turn_;
};

}  // namespace

void run_schedule(Mesh& mesh, std::span<std::byte> data, const Schedule& schedule, const ScheduleJob& job) {
  std::vector<int> peers;
  for (const Step& step : schedule) {
    for (const Send& send : step.sends) peers.push_back(send.peer);
    for (const Receive& receive : step.receives) peers.push_back(receive.peer);
  }
  mesh.prepare(peers);
  StepRunner runner(mesh, data, job);
  for (const Step& step : schedule) runner.run(step);
}

}  // namespace ringtune
