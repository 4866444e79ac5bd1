#include "transport/tcp_bootstrap.h"

#include <poll.h>

#include <array>
#include <utility>

#include "base/error.h"
#include "transport/socket.h"

namespace ringtune {
namespace {

constexpr std::uint32_t kHelloMagic = 0x4c475452;  // "RTGL" on the wire
constexpr std::uint32_t kWireVersion = 3;
constexpr std::size_t kMaxHelloBytes = kMaxUnprovenBytes - 4;  // behind the length of its frame

enum class Verdict : std::uint32_t { kWelcome = 0, kWrongVersion = 1, kWrongJob = 2, kWrongRank = 3, kProve = 4 };

/// {magic, version, job, from, to, channel, nonce}: what a connection is for, which both proofs cover.
Bytes hello_of(const std::string& job, int rank, const BootstrapRequest& request, const Nonce& nonce) {
  ByteWriter hello;
  hello.u32(kHelloMagic);
  hello.u32(kWireVersion);
  hello.string(job);
  hello.i32(rank);
  hello.i32(request.peer);
  hello.string(request.channel);
  hello.raw(nonce);
  if (hello.bytes().size() > kMaxHelloBytes) throw InvalidArgument("job and channel names exceed 4000 bytes");
  return hello.take();
}

/// A fresh connection has room for these few bytes; if it broke, the reader finds out.
void send_frame(int fd, ByteView payload) {
  Bytes frame;
  append_frame(frame, payload);
  (void)write_some(fd, frame);
}

/// {magic, version, verdict}, and with kProve {nonce, proof}.
void send_verdict(int fd, Verdict verdict, ByteView more = {}) {
  ByteWriter writer;
  writer.u32(kHelloMagic);
  writer.u32(kWireVersion);
  writer.u32(static_cast<std::uint32_t>(verdict));
  writer.raw(more);
  (void)write_some(fd, writer.bytes());
}

std::string refusal(Verdict verdict, std::uint32_t version, const std::string& job) {
  switch (verdict) {
    case Verdict::kWrongVersion:
      return "it speaks wire version " + std::to_string(version) + ", this rank " + std::to_string(kWireVersion) +
             ": install the same ringtune on all hosts";
    case Verdict::kWrongJob:
      return "it belongs to another job than '" + job + "'";
    case Verdict::kWrongRank:
      return "another rank listens there";
    default:
      return "it answered with verdict " + std::to_string(static_cast<std::uint32_t>(verdict));
  }
}

}  // namespace

void read_exactly(const BootstrapRequest& request, Waker& waker, int fd, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const std::uint32_t ticket = waker.prepare();
    const Transfer transfer = read_some(fd, bytes);
    if (transfer.closed) {
      throw PeerLost(request.peer, request.peer_name + " went away while channel '" + request.channel +
                                       "' was being connected: " + describe(transfer));
    }
    bytes = bytes.subspan(transfer.bytes);
    if (transfer.bytes > 0) continue;
    request.aborted->check(request.peer);
    if (request.deadline.expired()) {
      throw Timeout(request.peer_name + " did not open channel '" + request.channel + "' in time");
    }
    waker.wait(ticket, request.deadline);
  }
}

namespace {

void read_verdict(const BootstrapRequest& request, Waker& waker, int fd, const std::string& where,
                  const std::string& job, Verdict expected) {
  std::array<std::byte, 12> bytes;
  read_exactly(request, waker, fd, bytes);
  ByteReader reader(bytes);
  const std::uint32_t magic = reader.u32();
  const std::uint32_t version = reader.u32();
  const auto verdict = static_cast<Verdict>(reader.u32());
  if (magic != kHelloMagic) throw Protocol("what listens at " + where + " is not " + request.peer_name);
  if (verdict != expected) {
    throw Protocol(request.peer_name + " at " + where + " refused the connection: " + refusal(verdict, version, job));
  }
}

}  // namespace

TcpBootstrap::TcpBootstrap(std::string job, int rank, const std::string& bind_address, Secret secret, Waker& waker)
    : job_(std::move(job)),
      rank_(rank),
      secret_(std::move(secret)),
      waker_(waker),
      listener_(listen_tcp(bind_address, 0)) {}

std::uint16_t TcpBootstrap::port() const { return local_port(listener_.get()); }

Fd TcpBootstrap::accept(const BootstrapRequest& request) {
  const WatchScope door(waker_, listener_.get());
  while (true) {
    const std::uint32_t ticket = waker_.prepare();
    welcome_strangers();
    Fd fd = take_match(request);
    if (fd) {
      for (Stranger& stranger : strangers_) waker_.unwatch(stranger.fd.get());
      return fd;
    }
    try {
      pause(request, ticket);
    } catch (...) {
      for (Stranger& stranger : strangers_) waker_.unwatch(stranger.fd.get());
      throw;
    }
  }
}

void TcpBootstrap::pause(const BootstrapRequest& request, std::uint32_t ticket) const {
  request.aborted->check(request.peer);
  if (request.deadline.expired()) {
    throw Timeout(request.peer_name + " did not open channel '" + request.channel + "' to rank " +
                  std::to_string(rank_) + " in time");
  }
  waker_.wait(ticket, request.deadline);
}

void TcpBootstrap::welcome_strangers() {
  // The message of each is read before others can push it out.
  while (std::optional<Fd> fd = accept_tcp(listener_.get())) {
    if (strangers_.size() >= kMaxUnproven) strangers_.pop_front();  // closing it also ends its watch
    strangers_.push_back({.fd = std::move(*fd),
                          .in = FrameAssembler(kMaxHelloBytes, kMaxUnprovenBytes),
                          .until = Deadline::after(kProofTimeNs)});
    (void)welcome(std::prev(strangers_.end()));
  }
  for (auto stranger = strangers_.begin(); stranger != strangers_.end();) stranger = welcome(stranger);
}

std::list<TcpBootstrap::Stranger>::iterator TcpBootstrap::welcome(std::list<Stranger>::iterator stranger) {
  waker_.watch(stranger->fd.get(), false);
  // Its message is read first: this rank may have looked at nobody since the time was over.
  if (read_message(*stranger) && !stranger->until.expired()) return std::next(stranger);
  if (stranger->fd) waker_.unwatch(stranger->fd.get());
  return strangers_.erase(stranger);
}

/// True while it has not said all. Never throws for what a stranger says: that is only logged.
bool TcpBootstrap::read_message(Stranger& stranger) {
  try {
    while (true) {
      const Transfer transfer = read_some(stranger.fd.get(), stranger.in.space());
      if (transfer.closed) return false;
      stranger.in.filled(transfer.bytes);
      while (const std::optional<ByteView> frame = stranger.in.next()) {
        if (stranger.hello.empty()) {
          challenge(stranger, *frame);
          continue;
        }
        admit(stranger, *frame);
        return false;
      }
      if (transfer.bytes == 0) return true;
    }
  } catch (const Protocol& error) {
    warn_of_stranger(error.what());
    return false;
  }
}

void TcpBootstrap::challenge(Stranger& stranger, ByteView hello) {
  ByteReader reader(hello);
  if (reader.u32() != kHelloMagic) throw Protocol("not a hello of ringtune");
  const std::uint32_t version = reader.u32();
  const auto refuse = [&](Verdict verdict, const std::string& why) {
    send_verdict(stranger.fd.get(), verdict);
    throw Protocol(why);
  };
  if (version != kWireVersion) refuse(Verdict::kWrongVersion, "wire version " + std::to_string(version));
  const std::string job = reader.string();
  const int from = reader.i32();
  const int to = reader.i32();
  (void)reader.string();  // the channel
  reader.raw(stranger.handshake.caller);
  reader.expect_end();
  if (job != job_) refuse(Verdict::kWrongJob, "job '" + job + "' instead of '" + job_ + "'");
  if (to != rank_) {
    refuse(Verdict::kWrongRank, "rank " + std::to_string(from) + " looks for rank " + std::to_string(to) +
                                    ", this is rank " + std::to_string(rank_));
  }
  stranger.hello.assign(hello.begin(), hello.end());
  stranger.handshake.listener = fresh_nonce();
  ByteWriter answer;
  answer.raw(stranger.handshake.listener);
  answer.raw(stranger.handshake.proof(secret_, Side::kListener, hello));
  send_verdict(stranger.fd.get(), Verdict::kProve, answer.bytes());
}

/// Takes the connection for what its hello said, once that is proved.
void TcpBootstrap::admit(Stranger& stranger, ByteView proof) {
  if (!stranger.handshake.holds(secret_, Side::kCaller, stranger.hello, proof)) {
    throw Protocol("it does not know the secret of this job");
  }
  ByteReader reader(stranger.hello);
  (void)reader.u32();
  (void)reader.u32();
  (void)reader.string();
  const int from = reader.i32();
  (void)reader.i32();
  std::string channel = reader.string();
  waker_.unwatch(stranger.fd.get());
  // A second hello for the same channel means that the dialler gave up on the first one: the newest counts.
  waiting_[{from, std::move(channel)}] = std::move(stranger.fd);
}

Fd TcpBootstrap::take_match(const BootstrapRequest& request) {
  const auto found = waiting_.find({request.peer, request.channel});
  if (found == waiting_.end()) return Fd();
  Fd fd = std::move(found->second);
  waiting_.erase(found);
  // The dialler says nothing before the verdict; anything readable is the end of a dialler that gave up.
  if (poll_socket(fd.get(), POLLIN, Deadline::at(0))) return Fd();
  send_verdict(fd.get(), Verdict::kWelcome);
  return fd;
}

Fd TcpBootstrap::dial(const BootstrapRequest& request, const std::string& host, std::uint16_t port) {
  const std::string where = endpoint_text(host, port);
  ConnectAttempt attempt = start_connect(resolve(host, port).front());
  if (attempt.error != 0) {
    throw PeerLost(request.peer,
                   "cannot reach " + request.peer_name + " at " + where + ": " + errno_text(attempt.error));
  }
  const WatchScope scope(waker_, attempt.fd.get());
  finish_connect(request, attempt.fd.get(), where);
  const Nonce nonce = fresh_nonce();
  const Bytes hello = hello_of(job_, rank_, request, nonce);
  send_frame(attempt.fd.get(), hello);
  prove(request, attempt.fd.get(), where, hello, nonce);
  read_verdict(request, waker_, attempt.fd.get(), where, job_, Verdict::kWelcome);
  return std::move(attempt.fd);
}

void TcpBootstrap::finish_connect(const BootstrapRequest& request, int fd, const std::string& where) const {
  while (true) {
    const std::uint32_t ticket = waker_.prepare();
    if (poll_socket(fd, POLLOUT, Deadline::at(0))) break;
    request.aborted->check(request.peer);
    if (request.deadline.expired()) {
      throw Timeout("no answer from " + request.peer_name + " at " + where +
                    ": does a firewall stand between, or should RINGTUNE_INTERFACE_ADDRESS name another interface?");
    }
    waker_.wait(ticket, request.deadline);
  }
  const int error = connect_error(fd);
  if (error == 0) return;
  throw PeerLost(request.peer, "cannot reach " + request.peer_name + " at " + where + ": " + errno_text(error) +
                                   ". Its process has ended, or RINGTUNE_INTERFACE_ADDRESS should name another "
                                   "interface");
}

void TcpBootstrap::prove(const BootstrapRequest& request, int fd, const std::string& where, ByteView hello,
                         const Nonce& nonce) const {
  read_verdict(request, waker_, fd, where, job_, Verdict::kProve);
  Handshake handshake{.caller = nonce};
  Digest proof;
  read_exactly(request, waker_, fd, handshake.listener);
  read_exactly(request, waker_, fd, proof);
  if (!handshake.holds(secret_, Side::kListener, hello, proof)) {
    throw Protocol("what listens at " + where + " does not know the secret of this job: it is not " +
                   request.peer_name + ", or the ranks have different secrets (RINGTUNE_SECRET)");
  }
  send_frame(fd, handshake.proof(secret_, Side::kCaller, hello));
}

}  // namespace ringtune
