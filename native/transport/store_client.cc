#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

#include "base/error.h"
#include "transport/socket.h"
#include "transport/store.h"
#include "transport/store_wire.h"
#include "transport/tls.h"
#include "transport/wire.h"

namespace ringtune {
namespace {

// The server answers set and add at once; without any progress for this long it is lost.
constexpr std::int64_t kSilenceNs = 30'000'000'000;
// How long a get whose time is over waits for the server's word that the key is missing.
constexpr std::int64_t kCancelNs = 2'000'000'000;
// Whoever says why a key will not come is about to end, and does not wait long for a server that may be gone too.
constexpr std::int64_t kRefuseNs = 2'000'000'000;
constexpr std::int64_t kAttemptNs = 3'000'000'000;
// A server that closes the connection in the handshake may be busy with strangers: for so long it is asked again.
constexpr std::int64_t kTurnedAwayNs = 5'000'000'000;
constexpr std::int64_t kFirstPauseNs = 10'000'000;
constexpr std::int64_t kLongestPauseNs = 200'000'000;

/// One round over all addresses; empty when none answered, with the reason in `why`.
Fd connect_once(const std::vector<SocketAddress>& addresses, Deadline deadline, std::string& why) {
  for (const SocketAddress& address : addresses) {
    ConnectAttempt attempt = start_connect(address);
    if (attempt.error == 0 && !poll_socket(attempt.fd.get(), POLLOUT, earlier(deadline, Deadline::after(kAttemptNs)))) {
      why = "no answer";
      continue;
    }
    const int error = attempt.error != 0 ? attempt.error : connect_error(attempt.fd.get());
    if (error == 0) return std::move(attempt.fd);
    why = errno_text(error);
  }
  return Fd();
}

Fd connect_until(const std::string& host, std::uint16_t port, Deadline deadline) {
  const std::vector<SocketAddress> addresses = resolve(host, port);
  std::string why;
  for (std::int64_t pause_ns = kFirstPauseNs;; pause_ns = std::min(2 * pause_ns, kLongestPauseNs)) {
    Fd fd = connect_once(addresses, deadline, why);
    if (fd) return fd;
    if (deadline.expired()) {
      throw Timeout("cannot reach the store at " + endpoint_text(host, port) + ": " + why +
                    ". Does the launcher (or rank 0) run there, and does RINGTUNE_STORE name it?");
    }
    std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(pause_ns, deadline.remaining_ns())));
  }
}

ByteWriter start_request(StoreOp op, std::uint32_t request) {
  ByteWriter writer;
  writer.u8(static_cast<std::uint8_t>(op));
  writer.u32(request);
  return writer;
}

struct Answer {
  StoreStatus status = StoreStatus::kOk;
  Bytes value;
};

std::string text_of(ByteView bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

/// Sends or receives all of it; false when the connection closed.
bool send_all(int fd, ByteView bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const Transfer transfer = write_some(fd, bytes);
    if (transfer.closed) return false;
    bytes = bytes.subspan(transfer.bytes);
    if (transfer.bytes == 0 && !poll_socket(fd, POLLOUT, deadline)) throw Timeout("no progress");
  }
  return true;
}

bool receive_all(int fd, std::span<std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const Transfer transfer = read_some(fd, bytes);
    if (transfer.closed) return false;
    bytes = bytes.subspan(transfer.bytes);
    if (transfer.bytes == 0 && !poll_socket(fd, POLLIN, deadline)) throw Timeout("no answer");
  }
  return true;
}

/// Shows the server that this process knows the secret, and sees that the server does; false when it closed the
/// connection before it was seen. Throws Protocol for a stranger, Timeout.
bool prove(int fd, const std::string& endpoint, const Secret& secret, const StoreClaim& claim, Deadline deadline) {
  Handshake handshake{.caller = fresh_nonce()};
  const Bytes purpose = store_purpose(claim);
  ByteWriter hello;
  hello.u32(kStoreMagic);
  hello.raw(handshake.caller);
  hello.raw(claim.encode());
  std::array<std::byte, kStoreChallengeBytes> challenge;
  if (!send_all(fd, hello.bytes(), deadline) || !receive_all(fd, challenge, deadline)) return false;
  ByteReader reader(challenge);
  if (reader.u32() != kStoreMagic) throw Protocol("what listens at " + endpoint + " is no store of this ringtune");
  reader.raw(handshake.listener);
  Digest proof;
  reader.raw(proof);
  if (!handshake.holds(secret, Side::kListener, purpose, proof)) {
    throw Protocol("what serves the store at " + endpoint +
                   " does not know the secret of this job: it belongs to a stranger or to another job, or the ranks "
                   "have different secrets. Where the home folders of the hosts differ, set RINGTUNE_SECRET (or "
                   "RINGTUNE_SECRET_FILE) alike on all ranks");
  }
  return send_all(fd, handshake.proof(secret, Side::kCaller, purpose), deadline);
}

/// A connection, and this side's address where the connection does not show it.
struct Opened {
  Fd fd;
  std::string address;
};

Opened open_connection(const std::string& host, std::uint16_t port, const Secret& secret, const StoreClaim& claim,
                       Deadline deadline) {
  const std::string endpoint = endpoint_text(host, port);
  Deadline again = Deadline::never();
  while (true) {
    Opened opened{connect_until(host, port, deadline), ""};
    detect_silence(opened.fd.get());
    try {
      if (uses_tls()) opened.address = local_host(opened.fd.get());
      opened.fd = encrypt(std::move(opened.fd), Side::kCaller, "what serves the store at " + endpoint, deadline);
      if (prove(opened.fd.get(), endpoint, secret, claim, deadline)) return opened;
    } catch (const Timeout& error) {
      throw Timeout("the store at " + endpoint + " did not complete the handshake: " + error.what());
    }
    if (const std::string refusal = tls_refusal(); !refusal.empty()) throw Protocol(refusal);
    again = earlier(earlier(again, deadline), Deadline::after(kTurnedAwayNs));
    if (again.expired()) {
      throw Protocol(
          "what listens at " + endpoint +
          " closes the connection in the handshake: it is no store of this ringtune, has too many clients, or uses TLS "
          "and this process does not (RINGTUNE_TLS_CERT)");
    }
    std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(kLongestPauseNs, again.remaining_ns())));
  }
}

}  // namespace

/// All under `mutex`, which also serialises the calls.
struct StoreClient::Impl {
  Impl(const std::string& host, std::uint16_t port, const Secret& secret, Deadline deadline, const StoreIdentity& who)
      : endpoint(endpoint_text(host, port)),
        opened(open_connection(host, port, secret, StoreClaim::of(who), deadline)),
        fd(opened.fd),
        in(kStoreMaxFrameBytes + 64),
        most_asked_bytes(most_asked(who.role)) {}

  [[noreturn]] void lose(const std::string& why) {
    fd.reset();
    throw Error("lost the store at " + endpoint + ": " + why + ". The process that serves it has probably ended");
  }

  void send(ByteView bytes) {
    if (!fd) lose("connection closed earlier");
    while (!bytes.empty()) {
      const Transfer transfer = write_some(fd.get(), bytes);
      if (transfer.closed) lose(describe(transfer));
      bytes = bytes.subspan(transfer.bytes);
      if (transfer.bytes == 0 && !poll_socket(fd.get(), POLLOUT, Deadline::after(kSilenceNs))) lose("no progress");
    }
  }

  void send_request(const ByteWriter& writer) {
    Bytes frame;
    append_frame(frame, writer.bytes());
    send(frame);
  }

  /// Waits for the answer; `silence_ns` > 0 counts from the last bytes that came instead of `deadline`.
  bool receive(std::uint32_t request, Answer& answer, Deadline deadline, std::int64_t silence_ns) {
    while (true) {
      if (const std::optional<ByteView> frame = in.next()) {
        ByteReader reader(*frame);
        const std::uint32_t answered = reader.u32();
        if (answered < request) continue;  // a get that was given up: its answer came after all
        if (answered > request) lose("it answered another request");
        answer.status = static_cast<StoreStatus>(reader.u8());
        const ByteView value = reader.blob();
        answer.value.assign(value.begin(), value.end());
        return true;
      }
      const Deadline until = silence_ns > 0 ? Deadline::after(silence_ns) : deadline;
      if (!poll_socket(fd.get(), POLLIN, until)) return false;
      const Transfer transfer = read_some(fd.get(), in.space());
      if (transfer.closed) lose(describe(transfer));
      in.filled(transfer.bytes);
    }
  }

  Bytes ask(const ByteWriter& writer, std::uint32_t request, std::int64_t silence_ns = kSilenceNs) {
    send_request(writer);
    Answer answer;
    if (!receive(request, answer, Deadline::never(), silence_ns)) lose("no answer");
    if (answer.status != StoreStatus::kOk) {
      throw Error("the store at " + endpoint + " refused: " + text_of(answer.value));
    }
    return std::move(answer.value);
  }

  /// Sends a get and waits for its answer; after the deadline for the server's word that something is missing. Throws
  /// Timeout where not even that comes: a server that stands still is not lost, and may go on.
  Answer wait_for(const ByteWriter& writer, std::uint32_t request, Deadline deadline) {
    send_request(writer);
    Answer answer;
    if (!receive(request, answer, deadline, 0)) {
      send_request(start_request(StoreOp::kCancel, request));
      if (!receive(request, answer, Deadline::after(kCancelNs), 0)) {
        throw Timeout("the store at " + endpoint +
                      " does not answer: the process that serves it stands still, or its "
                      "host cannot be reached");
      }
    }
    return answer;
  }

  static void check_refused(const Answer& answer) {
    if (answer.status == StoreStatus::kRefused) throw PeerLost(kUnknownRank, text_of(answer.value));
  }

  Bytes get(const std::string& key, Deadline deadline) {
    const std::uint32_t request = next_request++;
    ByteWriter writer = start_request(StoreOp::kGet, request);
    writer.string(key);
    Answer answer = wait_for(writer, request, deadline);
    if (answer.status == StoreStatus::kOk) return std::move(answer.value);
    check_refused(answer);
    throw Timeout("key '" + key + "' did not appear in the store at " + endpoint + " in time");
  }

  std::vector<std::optional<Bytes>> get_all(const std::vector<std::string>& keys, Deadline deadline) {
    const std::uint32_t request = next_request++;
    ByteWriter writer = start_request(StoreOp::kGetAll, request);
    writer.u32(static_cast<std::uint32_t>(keys.size()));
    for (const std::string& key : keys) writer.string(key);
    const Answer answer = wait_for(writer, request, deadline);
    check_refused(answer);
    ByteReader reader(answer.value);
    std::vector<std::optional<Bytes>> values(keys.size());
    for (std::optional<Bytes>& value : values) {
      const bool there = reader.u8() != 0;
      const ByteView view = reader.blob();
      if (there) value.emplace(view.begin(), view.end());
    }
    return values;
  }

  std::mutex mutex;
  const std::string endpoint;
  Opened opened;
  Fd& fd;
  FrameAssembler in;
  const std::size_t most_asked_bytes;
  std::uint32_t next_request = 1;
};

StoreClient::StoreClient(const std::string& host, std::uint16_t port, const Secret& secret, Deadline deadline,
                         const StoreIdentity& who)
    : impl_(std::make_unique<Impl>(host, port, secret, deadline, who)) {}
StoreClient::~StoreClient() = default;

void StoreClient::set(const std::string& key, ByteView value) {
  const std::lock_guard lock(impl_->mutex);
  const std::uint32_t request = impl_->next_request++;
  ByteWriter writer = start_request(StoreOp::kSet, request);
  writer.string(key);
  writer.blob(value);
  if (writer.bytes().size() > impl_->most_asked_bytes) {
    throw InvalidArgument("the value of store key '" + key + "' has " + std::to_string(value.size()) +
                          " bytes; the limit is " + std::to_string(impl_->most_asked_bytes) + " with its key");
  }
  (void)impl_->ask(writer, request);
}

void StoreClient::set_at_end(const std::string& key, ByteView value) {
  check_sentence(key.size() + value.size());
  const std::lock_guard lock(impl_->mutex);
  const std::uint32_t request = impl_->next_request++;
  ByteWriter writer = start_request(StoreOp::kAtEnd, request);
  writer.string(key);
  writer.blob(value);
  (void)impl_->ask(writer, request);
}

Bytes StoreClient::get(const std::string& key, Deadline deadline) {
  const std::lock_guard lock(impl_->mutex);
  return impl_->get(key, deadline);
}

std::vector<std::optional<Bytes>> StoreClient::get_all(const std::vector<std::string>& keys, Deadline deadline) {
  const std::lock_guard lock(impl_->mutex);
  return impl_->get_all(keys, deadline);
}

std::int64_t StoreClient::add(const std::string& key, std::int64_t amount) {
  const std::lock_guard lock(impl_->mutex);
  const std::uint32_t request = impl_->next_request++;
  ByteWriter writer = start_request(StoreOp::kAdd, request);
  writer.string(key);
  writer.i64(amount);
  const Bytes value = impl_->ask(writer, request);
  return ByteReader(value).i64();
}

std::string StoreClient::refuse(const std::string& reason, const std::string& begins) {
  const std::lock_guard lock(impl_->mutex);
  const std::uint32_t request = impl_->next_request++;
  ByteWriter writer = start_request(StoreOp::kRefuse, request);
  writer.string(reason.substr(0, kMaxSentenceBytes / 2));
  writer.string(begins);
  writer.string("");
  return text_of(impl_->ask(writer, request, kRefuseNs));
}

std::string StoreClient::local_address() const {
  const std::lock_guard lock(impl_->mutex);
  if (!impl_->fd) impl_->lose("connection closed earlier");
  return impl_->opened.address.empty() ? local_host(impl_->fd.get()) : impl_->opened.address;
}

}  // namespace ringtune
