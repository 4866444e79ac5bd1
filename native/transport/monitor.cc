#include "transport/monitor.h"

#include <poll.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "transport/socket.h"

namespace ringtune {
namespace {

constexpr std::size_t kMaxMessageBytes = Monitor::kMostInquiryBytes + 64;
constexpr std::size_t kMaxReasonBytes = 1024;

/// Signs of life in the time of silence that makes a rank lost.
constexpr std::int64_t kBeats = 4;

enum class Message : std::uint8_t { kGoodbye = 1, kLost = 2, kAlive = 3, kQuestion = 4, kAnswer = 5 };

Bytes message_of(Message kind) {
  ByteWriter writer;
  writer.u8(static_cast<std::uint8_t>(kind));
  return writer.take();
}

Bytes lost(int rank, const std::string& reason) {
  ByteWriter writer;
  writer.u8(static_cast<std::uint8_t>(Message::kLost));
  writer.i32(rank);
  writer.string(reason.substr(0, kMaxReasonBytes));
  return writer.take();
}

Bytes inquiry(Message kind, std::uint32_t number, ByteView content) {
  ByteWriter writer;
  writer.u8(static_cast<std::uint8_t>(kind));
  writer.u32(number);
  writer.raw(content);
  return writer.take();
}

}  // namespace

Monitor::Spoke::Spoke(LivenessSocket socket)
    : peer(std::move(socket.peer)), fd(std::move(socket.fd)), in(kMaxMessageBytes) {}

Monitor::Monitor(int rank, int size, std::vector<LivenessSocket> sockets, std::int64_t silence_ns, Waker& waker,
                 PeerLostHandler handler, InquiryHandler inquiry)
    : rank_(rank),
      silence_ns_(silence_ns),
      waker_(waker),
      handler_(std::move(handler)),
      inquiry_(std::move(inquiry)),
      reported_(static_cast<std::size_t>(size)) {
  for (LivenessSocket& socket : sockets) spokes_.emplace_back(std::move(socket));
  thread_ = start_thread("rt-monitor", [this] { run(); });
}

Monitor::~Monitor() {
  inquiries_.stop();
  stop_.raise();
  thread_.join();
}

void Monitor::run() noexcept {
  try {
    watch_until_stop();
  } catch (const std::exception& error) {
    log(LogLevel::kError, "liveness is not watched any more: ", error.what());
  }
}

void Monitor::watch_until_stop() {
  std::vector<pollfd> events;
  while (true) {
    if (silence_ns_ > 0) beat();
    events.assign(
        {{.fd = stop_.fd(), .events = POLLIN, .revents = 0}, {.fd = unsent_.fd(), .events = POLLIN, .revents = 0}});
    {
      const std::lock_guard lock(mutex_);
      for (const Spoke& spoke : spokes_) {
        const auto wanted = static_cast<short>(spoke.out.empty() ? POLLIN : POLLIN | POLLOUT);
        events.push_back({.fd = spoke.present ? spoke.fd.get() : -1, .events = wanted, .revents = 0});
      }
    }
    const std::int64_t pause_ms = Deadline::at(next_beat_ns_).remaining_ns() / 1'000'000 + 1;
    const int count = ::poll(events.data(), events.size(), silence_ns_ > 0 ? static_cast<int>(pause_ms) : -1);
    if (count < 0 && errno != EINTR) throw_errno("monitor: poll");
    if (count < 0) continue;
    if (events[0].revents != 0) return;
    if (events[1].revents != 0) unsent_.clear();
    for (std::size_t i = 2; i < events.size(); ++i) {
      Spoke& spoke = spokes_[i - 2];
      if ((events[i].revents & POLLOUT) != 0) {
        const std::lock_guard lock(mutex_);
        flush(spoke);
      }
      if ((events[i].revents & ~POLLOUT) != 0) read_from(spoke);
    }
  }
}

/// Gives a sign of life where one is due, and loses who has given none for too long.
void Monitor::beat() {
  const std::int64_t now = now_ns();
  if (now < next_beat_ns_) return;
  const std::int64_t period = silence_ns_ / kBeats;
  // Where this process itself stood still (stopped with its job, a machine that slept), nothing of the others could
  // arrive. It may have done so before its first sign of life.
  const bool stood_still = now - next_beat_ns_ > period;
  next_beat_ns_ = now + period;
  send_all(message_of(Message::kAlive), -1);
  for (Spoke& spoke : spokes_) {
    if (stood_still) spoke.heard_ns = now;
    if (!spoke.present || now - spoke.heard_ns < silence_ns_) continue;
    lose(spoke, spoke.peer.name + " has given no sign of life for " + std::to_string(silence_ns_ / 1'000'000'000) +
                    " s: its process is stopped, or its host or the network hangs (RINGTUNE_LIVENESS_TIMEOUT)");
  }
}

void Monitor::read_from(Spoke& spoke) {
  try {
    const Transfer transfer = read_some(spoke.fd.get(), spoke.in.space());
    spoke.heard_ns = now_ns();
    spoke.in.filled(transfer.bytes);
    while (const std::optional<ByteView> frame = spoke.in.next()) handle(spoke, *frame);
    if (transfer.closed) {
      lose(spoke, spoke.peer.name + " died without leaving the job: " + describe(transfer));
    }
  } catch (const Protocol& error) {
    lose(spoke, spoke.peer.name + " sent nonsense on its liveness connection: " + error.what());
  }
}

void Monitor::handle(Spoke& spoke, ByteView frame) {
  ByteReader reader(frame);
  const auto kind = static_cast<Message>(reader.u8());
  if (kind == Message::kAlive) return;
  if (kind == Message::kGoodbye) return gone(spoke);
  if (kind == Message::kQuestion || kind == Message::kAnswer) {
    return handle_inquiry(spoke, kind == Message::kQuestion, reader);
  }
  if (kind != Message::kLost) throw Protocol("unknown message");
  const int rank = reader.i32();
  if (rank == spoke.peer.rank) return lose(spoke, reader.string());  // the rank reports its own end
  report(rank, reader.string());
}

void Monitor::handle_inquiry(const Spoke& spoke, bool question, ByteReader& reader) {
  const std::uint32_t number = reader.u32();
  Bytes content(reader.remaining());
  reader.raw(content);
  if (!question) {
    inquiries_.answered(number, spoke.peer.rank, content);
  } else if (inquiry_) {
    inquiry_(spoke.peer.rank, number, content);
  }
}

Answers Monitor::ask(ByteView question, Deadline deadline) {
  std::vector<int> ranks;
  std::uint32_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    for (const Spoke& spoke : spokes_) {
      if (spoke.present) ranks.push_back(spoke.peer.rank);
    }
    number = inquiries_.open(ranks, static_cast<int>(reported_.size()));
    const Bytes payload = inquiry(Message::kQuestion, number, question);
    for (Spoke& spoke : spokes_) {
      if (spoke.present) send(spoke, payload);
    }
  }
  return inquiries_.close(number, deadline);
}

void Monitor::reply(int to, std::uint32_t number, ByteView answer) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    for (Spoke& spoke : spokes_) {
      if (spoke.present && spoke.peer.rank == to) send(spoke, inquiry(Message::kAnswer, number, answer));
    }
  } catch (...) {  // out of memory: the rank that asks does without the answer
  }
}

// Its socket stays open (and unwatched) until the end: closing it here would let leave() write to a stranger's number.
void Monitor::gone(Spoke& spoke) {
  {
    const std::lock_guard lock(mutex_);
    spoke.present = false;
  }
  inquiries_.gone(spoke.peer.rank);
  waker_.notify();
}

void Monitor::lose(Spoke& spoke, const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (!spoke.present) return;  // it said goodbye before
    spoke.present = false;
  }
  inquiries_.gone(spoke.peer.rank);
  if (rank_ == 0) send_all(lost(spoke.peer.rank, reason), spoke.peer.rank);
  report(spoke.peer.rank, reason);
  waker_.notify();
}

void Monitor::report(int rank, const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    const auto index = static_cast<std::size_t>(rank);
    if (left_ || rank < 0 || rank == rank_ || index >= reported_.size() || reported_[index]) return;
    reported_[index] = true;
  }
  log(LogLevel::kInfo, reason);
  handler_(rank, reason);
}

void Monitor::send_all(ByteView payload, int except) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    for (Spoke& spoke : spokes_) {
      if (spoke.present && spoke.peer.rank != except) send(spoke, payload);
    }
  } catch (...) {  // out of memory: the peers will see this rank's own sockets close
  }
}

/// With the mutex held. The sockets carry hardly anything, so that most fits at once.
void Monitor::send(Spoke& spoke, ByteView payload) {
  constexpr std::size_t kMostUnsent = 1 << 20;
  if (spoke.out.size() > kMostUnsent) return;  // a peer that has read nothing for so long is beyond help
  spoke.out.push_frame(payload);
  flush(spoke);
  if (!spoke.out.empty()) unsent_.raise();
}

/// With the mutex held. What a broken socket does not take is dropped: reading from it says that the peer is lost.
void Monitor::flush(Spoke& spoke) noexcept {
  while (!spoke.out.empty()) {
    const Transfer transfer = write_some(spoke.fd.get(), spoke.out.pending());
    spoke.out.sent(transfer.closed ? spoke.out.size() : transfer.bytes);
    if (transfer.bytes == 0) return;
  }
}

void Monitor::leave() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(left_, true)) return;
  }
  send_all(message_of(Message::kGoodbye), -1);
}

void Monitor::fail(const std::string& reason) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(left_, true)) return;
  }
  try {
    send_all(lost(rank_, reason), -1);
  } catch (const std::bad_alloc&) {  // the peers will see this rank's sockets close
  }
}

bool Monitor::alone() const {
  if (rank_ != 0) return true;
  const std::lock_guard lock(mutex_);
  return std::none_of(spokes_.begin(), spokes_.end(), [](const Spoke& spoke) { return spoke.present; });
}

}  // namespace ringtune
