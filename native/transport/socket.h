// TCP sockets: numeric addresses, listening, connecting, options. IPv4 and IPv6; and sockets of this host alone.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"

namespace ringtune {

/// In place of a host: processes of this host meet by Unix sockets with abstract names, one for each port. For hosts on
/// which no address works, since even the loopback interface is down.
inline constexpr const char* kLocalHost = "@local";

/// Whether a numeric address leads nowhere but to this host.
[[nodiscard]] inline bool is_loopback(std::string_view address) noexcept {
  return address.starts_with("127.") || address == "::1" || address == kLocalHost;
}

/// A resolved address. Value type.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
};

/// "10.0.0.1:4567" or "[::1]:4567", for messages.
[[nodiscard]] std::string endpoint_text(const std::string& host, std::uint16_t port);

/// All addresses of a host name or numeric address. May block in the resolver. Throws Error naming host and reason.
[[nodiscard]] std::vector<SocketAddress> resolve(const std::string& host, std::uint16_t port);

/// A non-blocking listening socket; port 0 = any. Throws Error with address and reason.
[[nodiscard]] Fd listen_tcp(const std::string& host, std::uint16_t port);
[[nodiscard]] std::uint16_t local_port(int fd);
/// Numeric address of this end. Throws Error.
[[nodiscard]] std::string local_host(int fd);
/// Numeric address of the other end; empty when it has none.
[[nodiscard]] std::string peer_host(int fd);
/// Whether the other end has closed the connection and nothing that it sent is left to be read.
[[nodiscard]] bool has_ended(int fd) noexcept;

/// The next waiting connection, non-blocking, with TCP_NODELAY; empty when none waits. Throws Error only for faults of
/// the listening socket itself (not for a client that went away).
[[nodiscard]] std::optional<Fd> accept_tcp(int listener);

/// A connect under way, or one that failed at once (`error` = errno, no descriptor).
struct ConnectAttempt {
  Fd fd;
  int error = 0;
};
/// Starts a non-blocking connect; finished when the socket is writable: then connect_error() is 0 or an errno
/// (ECONNREFUSED also for a socket that has met itself, because nobody listens at that port of this host).
/// Throws Error when there is no descriptor left.
[[nodiscard]] ConnectAttempt start_connect(const SocketAddress& address);
[[nodiscard]] int connect_error(int fd) noexcept;

/// Waits for events (POLLIN, POLLOUT) on one socket; false at the deadline. Restarts after signals. Throws Error.
bool poll_socket(int fd, short events, Deadline deadline);

/// A host that vanished without FIN is noticed after about this time on an idle connection (keepalive probes).
inline constexpr int kPeerSilenceSeconds = 5;
void keep_alive(int fd) noexcept;
/// The same also while sent bytes are not acknowledged. Only for connections whose reader never pauses: the kernel
/// counts a closed receive window as silence, so a busy peer would be dropped from a link that carries bulk data.
void detect_silence(int fd) noexcept;

/// Congestion control by name, as in net.ipv4.tcp_congestion_control; "system" leaves the host's choice. "auto" takes
/// reno in place of BBR and cubic where the peer is near (a round trip below 5 ms): on lines of 10 Gbit/s that neither
/// lose nor reorder anything, at 16 and 64 MiB, BBR took 1.04 to 1.31 and cubic 1.04 to 1.14 times as long as reno
/// (medians of four runs in turn). A name that the kernel refuses is left aside with a warning.
void control_congestion(int fd, const std::string& name);

/// What came of one non-blocking read or write.
struct Transfer {
  std::size_t bytes = 0;
  bool closed = false;  // end of stream, or the connection broke
  int error = 0;        // errno when it broke, else 0
};
[[nodiscard]] Transfer read_some(int fd, std::span<std::byte> bytes) noexcept;
/// Never raises SIGPIPE.
[[nodiscard]] Transfer write_some(int fd, std::span<const std::byte> bytes) noexcept;

/// The same with several buffers, at most kMaxBuffers.
inline constexpr std::size_t kMaxBuffers = 64;
[[nodiscard]] Transfer read_into(int fd, std::span<const iovec> buffers) noexcept;
[[nodiscard]] Transfer write_from(int fd, std::span<const iovec> buffers) noexcept;

/// The text of an errno.
[[nodiscard]] std::string errno_text(int code);
/// Warns of a connection that is none of this job's: a port scanner, another version, another job. They come as often
/// as others like, so it is one line a minute at most, with the number of those before it. Thread-safe.
void warn_of_stranger(std::string_view why) noexcept;

/// "connection closed" or the text of errno.
[[nodiscard]] std::string describe(const Transfer& transfer);

}  // namespace ringtune
