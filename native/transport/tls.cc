#include "transport/tls.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/home_process.h"
#include "base/log.h"
#include "transport/openssl.h"
#include "transport/socket.h"
#include "transport/thread.h"

namespace ringtune {
namespace {

constexpr std::size_t kChunkBytes = 16 << 10;  // a record of TLS
constexpr int kTurns = 8;                      // chunks of a connection before it is the next one's turn
constexpr std::int64_t kDrainNs = 1'000'000'000;

struct FreeSsl {
  void operator()(ssl_st* ssl) const noexcept { OpenSsl::open().free(ssl); }
};

/// Bytes on their way from one socket to the other, one chunk at a time.
struct Chunk {
  std::array<std::byte, kChunkBytes> bytes;
  std::size_t begin = 0;
  std::size_t end = 0;
  [[nodiscard]] bool empty() const noexcept { return begin == end; }
};

/// How a handshake went, for the caller that waits for it.
struct Outcome {
  bool done = false;
  std::string failure;
};

struct Connection {
  Fd socket;
  Fd plain;  // our end of the pair
  std::unique_ptr<ssl_st, FreeSsl> ssl;
  std::string peer;
  Side side = Side::kCaller;
  Deadline until = Deadline::never();  // of the handshake
  std::shared_ptr<Outcome> outcome;
  bool known = false;        // the handshake is done
  bool wants_write = false;  // OpenSSL waits until the socket takes more
  bool plain_ended = false;
  bool socket_ended = false;
  Chunk in;   // to the plain end
  Chunk out;  // to the socket
};

constexpr const char* kAdvice =
    ". All processes of a job need certificates of the same authority (RINGTUNE_TLS_CERT, RINGTUNE_TLS_KEY, "
    "RINGTUNE_TLS_CA) that have not expired, or none of them any";

/// What is wrong with this side's certificate, where OpenSSL's words are those of the other end; else empty.
std::string refusal_by(const std::string& peer, const std::string& words) {
  constexpr std::string_view kOfPeer = "alert ";  // "sslv3 alert certificate expired"
  const std::size_t at = words.find(kOfPeer);
  if (at == std::string::npos) return "";
  return peer + " does not trust this process's certificate: " + words.substr(at + kOfPeer.size()) + kAdvice;
}

/// The thread that carries all encrypted connections of this process.
class Pump {
 public:
  explicit Pump(const TlsFiles& files);
  ~Pump();
  Pump(const Pump&) = delete;
  Pump& operator=(const Pump&) = delete;
  Fd add(Fd socket, Side side, const std::string& peer, Deadline deadline);
  [[nodiscard]] bool here() const noexcept { return home_.here(); }
  [[nodiscard]] std::string refusal() {
    const std::lock_guard lock(mutex_);
    return refusal_;
  }

 private:
  void run();
  [[nodiscard]] bool turn(Connection& connection);
  [[nodiscard]] bool shake_hands(Connection& connection);
  void receive(Connection& connection);
  void send(Connection& connection);
  [[nodiscard]] bool again(Connection& connection, int result) const;
  void finish(Connection& connection, const std::string& failure);
  [[nodiscard]] std::string failure_of(const Connection& connection) const;

  HomeProcess home_;
  const OpenSsl& api_ = OpenSsl::open();
  ssl_ctx_st* context_ = nullptr;  // for good: there is one in a process
  StopSignal news_;
  std::mutex mutex_;
  std::condition_variable known_;
  std::vector<std::unique_ptr<Connection>> fresh_;
  std::string refusal_;
  bool ends_ = false;
  bool more_ = false;  // the thread's: something is left that no poll() tells of
  std::thread thread_;
};

Pump::Pump(const TlsFiles& files) {
  api_.clear_errors();
  context_ = api_.context_new(api_.method());
  if (context_ == nullptr) throw Error("OpenSSL cannot begin: " + api_.why());
  if (api_.context_control(context_, OpenSsl::kSetOldest, OpenSsl::kTls13, nullptr) != 1) {
    throw Error("OpenSSL cannot use TLS 1.3: " + api_.why());
  }
  (void)api_.context_control(context_, OpenSsl::kSetMode, OpenSsl::kPartialWrites, nullptr);
  // OpenSSL would ask the terminal, and wait.
  api_.set_password(context_, [](char*, int, int, void*) { return 0; });
  const auto check = [&](bool good, const char* variable, const std::string& file, const char* what) {
    if (!good) throw Error(std::string(variable) + "='" + file + "' cannot be used as " + what + ": " + api_.why());
  };
  check(api_.load_authority(context_, files.authority.c_str(), nullptr) == 1, "RINGTUNE_TLS_CA", files.authority,
        "the certificate of an authority (PEM)");
  check(api_.use_certificate(context_, files.certificate.c_str()) == 1, "RINGTUNE_TLS_CERT", files.certificate,
        "a certificate (PEM)");
  check(api_.use_key(context_, files.key.c_str(), OpenSsl::kPem) == 1 && api_.check_key(context_) == 1,
        "RINGTUNE_TLS_KEY", files.key, "the certificate's private key (PEM, without a password)");
  api_.set_verify(context_, OpenSsl::kVerifyBoth, nullptr);
  thread_ = start_thread("rt-tls", [this] { run(); });
}

Pump::~Pump() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  news_.raise();
  thread_.join();
}

Fd Pump::add(Fd socket, Side side, const std::string& peer, Deadline deadline) {
  std::array<int, 2> pair{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair.data()) != 0) {
    throw_errno("cannot create a pair of sockets");
  }
  Fd plain(pair[0]);
  auto made = std::make_unique<Connection>();
  made->plain = Fd(pair[1]);
  made->socket = std::move(socket);
  made->ssl.reset(api_.create(context_));
  if (made->ssl == nullptr || api_.set_socket(made->ssl.get(), made->socket.get()) != 1) {
    throw Error("OpenSSL cannot take a connection: " + api_.why());
  }
  side == Side::kCaller ? api_.be_caller(made->ssl.get()) : api_.be_listener(made->ssl.get());
  made->peer = peer;
  made->side = side;
  made->until = side == Side::kCaller ? deadline : Deadline::after(kProofTimeNs);
  const auto outcome = made->outcome = std::make_shared<Outcome>();
  std::unique_lock lock(mutex_);
  fresh_.push_back(std::move(made));
  news_.raise();
  if (side == Side::kListener) return plain;
  known_.wait(lock, [&] { return outcome->done; });  // it ends at its deadline
  if (outcome->failure.empty()) return plain;
  if (deadline.expired()) throw Timeout(outcome->failure);
  throw Protocol(outcome->failure);
}

void Pump::run() {
  std::list<std::unique_ptr<Connection>> all;
  std::vector<pollfd> events;
  Deadline drained = Deadline::never();
  while (true) {
    bool ends = false;
    {
      const std::lock_guard lock(mutex_);
      for (auto& one : fresh_) all.push_back(std::move(one));
      fresh_.clear();
      ends = ends_;
    }
    if (ends && drained.is_never()) drained = Deadline::after(kDrainNs);
    more_ = false;
    all.remove_if([&](const std::unique_ptr<Connection>& one) { return !turn(*one); });
    // What a process says last is still sent, as the kernel sends what is in a plain socket.
    const bool idle = std::ranges::all_of(all, [](const auto& one) { return !one->known || one->out.empty(); });
    if (ends && ((idle && !more_) || drained.expired())) return;
    events.assign(1, {.fd = news_.fd(), .events = POLLIN, .revents = 0});
    std::int64_t wait_ns = ends ? drained.remaining_ns() : -1;
    for (const auto& one : all) {
      const bool reads = !one->socket_ended && one->in.empty();
      const auto outer = static_cast<short>((reads ? POLLIN : 0) | (one->wants_write ? POLLOUT : 0));
      const bool takes = one->known && !one->plain_ended && one->out.empty();
      const auto inner = static_cast<short>((takes ? POLLIN : 0) | (one->in.empty() ? 0 : POLLOUT));
      events.push_back({.fd = outer == 0 ? -1 : one->socket.get(), .events = outer, .revents = 0});
      events.push_back({.fd = inner == 0 ? -1 : one->plain.get(), .events = inner, .revents = 0});
      if (!one->known) wait_ns = wait_ns < 0 ? one->until.remaining_ns() : std::min(wait_ns, one->until.remaining_ns());
    }
    const int timeout_ms = more_ ? 0
                           : wait_ns < 0
                               ? -1
                               : static_cast<int>(std::min<std::int64_t>(wait_ns, 3'600'000'000'000) / 1'000'000 + 1);
    (void)::poll(events.data(), events.size(), timeout_ms);
    if (events[0].revents != 0) news_.clear();
  }
}

/// Does what can be done now; false when the connection has ended.
bool Pump::turn(Connection& connection) {
  if (!connection.known && !shake_hands(connection)) return false;
  if (!connection.known) return true;
  receive(connection);
  send(connection);
  if (connection.socket_ended && connection.in.empty()) return false;
  if (!connection.plain_ended || !connection.out.empty()) return true;
  (void)api_.shutdown(connection.ssl.get());
  (void)::shutdown(connection.socket.get(), SHUT_RDWR);  // a forked child may hold the socket too
  return false;
}

bool Pump::shake_hands(Connection& connection) {
  // Whoever asked for it may have given up.
  if (connection.side == Side::kListener && has_ended(connection.plain.get())) return false;
  api_.clear_errors();
  const int result = api_.handshake(connection.ssl.get());
  if (result == 1) {
    connection.known = true;
    connection.wants_write = false;
    finish(connection, "");
    return true;
  }
  if (again(connection, result) && !connection.until.expired()) return true;
  finish(connection, failure_of(connection));
  return false;
}

std::string Pump::failure_of(const Connection& connection) const {
  if (connection.until.expired()) return connection.peer + " did not complete the TLS handshake in time";
  const long verdict = api_.verify_result(connection.ssl.get());
  const std::string why = verdict != 0 ? std::string(api_.verify_text(verdict)) : api_.why();
  const std::string refusal = refusal_by(connection.peer, why);
  return refusal.empty() ? connection.peer + " is not trusted by TLS: " + why + kAdvice : refusal;
}

void Pump::finish(Connection& connection, const std::string& failure) {
  if (!failure.empty() && connection.side == Side::kListener) warn_of_stranger(failure);
  {
    const std::lock_guard lock(mutex_);
    connection.outcome->done = true;
    connection.outcome->failure = failure;
  }
  known_.notify_all();
}

/// Whether what OpenSSL was asked for goes on later.
bool Pump::again(Connection& connection, int result) const {
  const int error = api_.get_error(connection.ssl.get(), result);
  connection.wants_write = error == OpenSsl::kWantWrite;
  return error == OpenSsl::kWantRead || error == OpenSsl::kWantWrite;
}

/// From the socket to the plain end.
void Pump::receive(Connection& connection) {
  Chunk& in = connection.in;
  for (int i = 0;; ++i) {
    if (!in.empty()) {
      const Transfer transfer =
          write_some(connection.plain.get(), std::span(in.bytes).subspan(in.begin, in.end - in.begin));
      in.begin += transfer.bytes;
      if (transfer.closed) in.begin = in.end;  // nobody wants it
      if (!in.empty()) return;
    }
    if (connection.socket_ended) return;
    if (i == kTurns) {
      more_ = true;
      return;
    }
    api_.clear_errors();
    const int result = api_.read(connection.ssl.get(), in.bytes.data(), static_cast<int>(in.bytes.size()));
    in.begin = 0;
    in.end = static_cast<std::size_t>(std::max(result, 0));
    if (result > 0) continue;
    if (again(connection, result)) return;
    connection.socket_ended = true;
    // A listener's verdict over this side's certificate comes behind the handshake.
    const std::string refusal = refusal_by(connection.peer, api_.why());
    if (!refusal.empty() && connection.side == Side::kCaller) {
      static RareWarning rare;
      rare.warn("TLS: ", refusal);
      const std::lock_guard lock(mutex_);
      refusal_ = refusal;
    }
    return;
  }
}

/// From the plain end to the socket.
void Pump::send(Connection& connection) {
  Chunk& out = connection.out;
  for (int i = 0;; ++i) {
    if (out.empty() && !connection.plain_ended) {
      if (i >= kTurns) {
        more_ = true;
        return;
      }
      const Transfer transfer = read_some(connection.plain.get(), out.bytes);
      out.begin = 0;
      out.end = transfer.bytes;
      connection.plain_ended = transfer.closed;
    }
    if (out.empty()) return;
    api_.clear_errors();
    const int result =
        api_.write(connection.ssl.get(), out.bytes.data() + out.begin, static_cast<int>(out.end - out.begin));
    if (result <= 0) {
      if (again(connection, result)) return;
      receive(connection);  // what the other end has said before it closed
      connection.socket_ended = true;
      out.begin = out.end;
      return;
    }
    out.begin += static_cast<std::size_t>(result);
  }
}

/// The pump of this process, once TLS is in use.
class Held {
 public:
  ~Held() {
    if (pump_ != nullptr && !pump_->here()) (void)pump_.release();  // a forked child's copy: the thread is the parent's
  }
  void use(const TlsFiles& files, std::unique_ptr<Pump> pump) {
    const std::lock_guard lock(mutex_);
    files_ = files;
    pump_ = std::move(pump);
  }
  Pump& pump() {
    const std::lock_guard lock(mutex_);
    if (!pump_->here()) {
      (void)pump_.release();
      pump_ = std::make_unique<Pump>(files_);
    }
    return *pump_;
  }

 private:
  std::mutex mutex_;
  TlsFiles files_;
  std::unique_ptr<Pump> pump_;
};

Held& held() {
  static Held one;
  return one;
}

std::atomic<bool> in_use = false;

}  // namespace

void use_tls(const TlsFiles& files) {
  // OpenSSL comes first, so that at the end of the process it is still there when the pump sends what is left.
  auto pump = std::make_unique<Pump>(files);
  held().use(files, std::move(pump));
  in_use = true;
}

bool uses_tls() noexcept { return in_use; }

std::string tls_refusal() { return uses_tls() ? held().pump().refusal() : ""; }

Fd encrypt(Fd socket, Side side, const std::string& peer, Deadline deadline) {
  return uses_tls() ? held().pump().add(std::move(socket), side, peer, deadline) : std::move(socket);
}

}  // namespace ringtune
