#include "transport/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "transport/memory.h"

namespace ringtune {
namespace {

void set_option(int fd, int level, int option, int value) noexcept {
  // Tuning and failure detection only: a kernel that refuses still gives a working connection.
  (void)::setsockopt(fd, level, option, &value, sizeof(value));
}

SocketAddress own_address(int fd) {
  SocketAddress address;
  address.length = sizeof(address.storage);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0) {
    throw_errno("cannot read the address of a socket");
  }
  return address;
}

constexpr std::string_view kLocalName = "ringtune/";

bool is_local(const SocketAddress& address) noexcept { return address.storage.ss_family == AF_UNIX; }

/// The name of a port of kLocalHost: an abstract one, which no file stands for and which ends with its socket.
SocketAddress local_address(std::uint16_t port) {
  const std::string name = std::string(kLocalName) + std::to_string(port);
  SocketAddress address;
  auto& local = reinterpret_cast<sockaddr_un&>(address.storage);
  local.sun_family = AF_UNIX;
  std::memcpy(local.sun_path + 1, name.data(), name.size());  // the leading zero makes it abstract
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

std::uint16_t port_of_local(const SocketAddress& address) {
  const auto& local = reinterpret_cast<const sockaddr_un&>(address.storage);
  const std::size_t head = offsetof(sockaddr_un, sun_path) + 1 + kLocalName.size();
  if (address.length <= head) throw Error("a socket of this host has no port");
  const std::string digits(local.sun_path + 1 + kLocalName.size(), address.length - head);
  return static_cast<std::uint16_t>(std::stoul(digits));
}

std::string numeric_host(const SocketAddress& address) {
  if (is_local(address)) return kLocalHost;
  char host[NI_MAXHOST];
  const int code = ::getnameinfo(reinterpret_cast<const sockaddr*>(&address.storage), address.length, host,
                                 sizeof(host), nullptr, 0, NI_NUMERICHOST);
  if (code != 0) throw Error(std::string("cannot print the address of a socket: ") + ::gai_strerror(code));
  std::string text = host;
  // An IPv4 peer of a dual-stack socket: give the plain form, which an IPv4 socket can connect to as well.
  if (text.starts_with("::ffff:") && text.find('.') != std::string::npos) text.erase(0, 7);
  return text;
}

Fd listen_at(const SocketAddress& address) {
  Fd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return fd;
  if (!is_local(address)) set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.storage.ss_family == AF_INET6) set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) != 0 ||
      ::listen(fd.get(), SOMAXCONN) != 0) {
    const int code = errno;
    fd.reset();
    errno = code;
  }
  return fd;
}

/// Listens at a free port of kLocalHost. The kernel deals none out by number here, so some are tried by chance.
Fd listen_at_local() {
  constexpr int kAttempts = 100;
  std::random_device chance;
  std::uniform_int_distribution<int> ports(1024, std::numeric_limits<std::uint16_t>::max());
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    Fd fd = listen_at(local_address(static_cast<std::uint16_t>(ports(chance))));
    if (fd || errno != EADDRINUSE) return fd;
  }
  return Fd();
}

}  // namespace

std::string endpoint_text(const std::string& host, std::uint16_t port) {
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

std::vector<SocketAddress> resolve(const std::string& host, std::uint16_t port) {
  if (host == kLocalHost) return {local_address(port)};
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0) throw Error("cannot resolve host '" + host + "': " + ::gai_strerror(code));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    SocketAddress address;
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.length = entry->ai_addrlen;
    addresses.push_back(address);
  }
  return addresses;
}

Fd listen_tcp(const std::string& host, std::uint16_t port) {
  for (const SocketAddress& address : resolve(host, port)) {
    Fd fd = is_local(address) && port == 0 ? listen_at_local() : listen_at(address);
    if (fd) return fd;
  }
  throw_errno("cannot listen on " + endpoint_text(host, port));
}

std::uint16_t local_port(int fd) {
  const SocketAddress address = own_address(fd);
  if (is_local(address)) return port_of_local(address);
  if (address.storage.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_port);
}

std::string local_host(int fd) { return numeric_host(own_address(fd)); }

std::string peer_host(int fd) {
  SocketAddress address;
  address.length = sizeof(address.storage);
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0) return "";
  return address.storage.ss_family == AF_UNIX ? "" : numeric_host(address);
}

bool has_ended(int fd) noexcept {
  char byte = 0;
  return ::recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

std::optional<Fd> accept_tcp(int listener) {
  while (true) {
    Fd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd) {
      set_option(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
      return fd;
    }
    // These tell of one connection that failed before it was accepted; the next may be fine.
    if (errno == EINTR || errno == ECONNABORTED || errno == EPROTO || errno == ENETDOWN || errno == EHOSTUNREACH) {
      continue;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return std::nullopt;
    throw_errno("cannot accept a connection");
  }
}

ConnectAttempt start_connect(const SocketAddress& address) {
  Fd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw_errno("cannot create a socket");
  set_option(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) != 0 &&
      errno != EINPROGRESS && errno != EINTR) {
    return {.fd = Fd(), .error = errno};
  }
  return {.fd = std::move(fd), .error = 0};
}

namespace {

/// Whether a socket is connected to itself: while nobody listens at a port of this host that the kernel deals out, a
/// connect to it may be given that very port as its own, and then succeeds (a simultaneous open with itself).
bool met_itself(int fd) noexcept {
  SocketAddress here;
  SocketAddress there;
  here.length = there.length = sizeof(here.storage);
  return ::getsockname(fd, reinterpret_cast<sockaddr*>(&here.storage), &here.length) == 0 &&
         ::getpeername(fd, reinterpret_cast<sockaddr*>(&there.storage), &there.length) == 0 &&
         here.length == there.length && std::memcmp(&here.storage, &there.storage, here.length) == 0;
}

}  // namespace

int connect_error(int fd) noexcept {
  int code = 0;
  socklen_t length = sizeof(code);
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &length) != 0) return errno;
  if (code == 0 && met_itself(fd)) {
    // No process listens there. It closes without lingering, or the port would stay taken for the one that will listen.
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    (void)::setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    return ECONNREFUSED;
  }
  return code;
}

bool poll_socket(int fd, short events, Deadline deadline) {
  while (true) {
    pollfd entry{.fd = fd, .events = events, .revents = 0};
    const std::int64_t ms = deadline.is_never() ? -1 : (deadline.remaining_ns() + 999'999) / 1'000'000;
    const int count = ::poll(&entry, 1, static_cast<int>(std::min<std::int64_t>(ms, std::numeric_limits<int>::max())));
    if (count > 0) return true;
    if (count < 0 && errno != EINTR) throw_errno("poll");
    if (deadline.expired()) return false;
  }
}

void keep_alive(int fd) noexcept {
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, kPeerSilenceSeconds - 1);
}

void detect_silence(int fd) noexcept {
  keep_alive(fd);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kPeerSilenceSeconds * 1000);
}

namespace {

constexpr std::uint32_t kNearMicroseconds = 5000;

/// By the round trip of the connection's handshake.
bool is_near(int fd) noexcept {
  tcp_info info{};
  socklen_t length = sizeof(info);
  return ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 && info.tcpi_rtt < kNearMicroseconds;
}

}  // namespace

void control_congestion(int fd, const std::string& name) {
  if (name == "system") return;
  std::string wanted = name;
  if (name == "auto") {
    std::array<char, 16> present{};
    socklen_t length = present.size() - 1;
    if (::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, present.data(), &length) != 0) return;
    const std::string_view name_now = present.data();
    if ((!name_now.starts_with("bbr") && name_now != "cubic") || !is_near(fd)) return;
    wanted = "reno";
  }
  if (::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, wanted.data(), static_cast<socklen_t>(wanted.size())) == 0) return;
  const int code = errno;
  if (name != "auto") log(LogLevel::kWarning, "no TCP congestion control '", wanted, "' here: ", errno_text(code));
}

namespace {

msghdr message_of(std::span<const iovec> buffers) noexcept {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(buffers.data());  // the kernel only reads the list
  message.msg_iovlen = buffers.size();
  return message;
}

}  // namespace

Transfer read_into(int fd, std::span<const iovec> buffers) noexcept {
  msghdr message = message_of(buffers);
  while (true) {
    const ssize_t count = ::recvmsg(fd, &message, 0);
    if (count > 0) return {.bytes = static_cast<std::size_t>(count)};
    if (count == 0) return {.closed = !buffers.empty() && buffers.front().iov_len > 0};
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return {};
    return {.closed = true, .error = errno};
  }
}

Transfer write_from(int fd, std::span<const iovec> buffers) noexcept {
  const msghdr message = message_of(buffers);
  while (true) {
    const ssize_t count = ::sendmsg(fd, &message, MSG_NOSIGNAL);
    if (count >= 0) return {.bytes = static_cast<std::size_t>(count)};
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return {};
    return {.closed = true, .error = errno};
  }
}

Transfer read_some(int fd, std::span<std::byte> bytes) noexcept {
  const iovec buffer{bytes.data(), bytes.size()};
  return read_into(fd, std::span(&buffer, 1));
}

Transfer write_some(int fd, std::span<const std::byte> bytes) noexcept {
  const iovec buffer{const_cast<std::byte*>(bytes.data()), bytes.size()};
  return write_from(fd, std::span(&buffer, 1));
}

void warn_of_stranger(std::string_view why) noexcept {
  static RareWarning rare;
  rare.warn("turned away a connection that is not from this job: ", why);
}

std::string errno_text(int code) { return std::generic_category().message(code); }

std::string describe(const Transfer& transfer) {
  return transfer.error == 0 ? "connection closed" : errno_text(transfer.error);
}

}  // namespace ringtune
