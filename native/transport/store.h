// The rendezvous store: a small key-value server on TCP. Used at start-up, for traces of remote hosts at the end,
// never in the data path. Values are blobs; keys never change once set (set twice = overwrite, last wins).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/home_process.h"
#include "transport/handshake.h"
#include "transport/store_values.h"

namespace ringtune {

/// What a client is in its job, as it says when it connects. At a time one process alone may be a rank of a job.
enum class StoreRole : std::uint8_t { kOther = 0, kRank = 1, kLauncher = 2, kWorker = 3, kChild = 4 };
struct StoreIdentity {
  StoreRole role = StoreRole::kOther;
  int rank = -1;  // of a worker of an elastic job: its number
  std::string job;
};

/// Owns a listening socket and one thread (poll loop, blocks when idle). Serves until destroyed; a forked child's copy
/// does nothing.
class StoreServer {
 public:
  /// host: address to listen on ("0.0.0.0", "127.0.0.1", "::"); port 0 = any. Only clients that know `secret` are
  /// served. Throws Error with address and reason.
  StoreServer(const std::string& host, std::uint16_t port, Secret secret, const StoreLimits& limits = {});
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;
  [[nodiscard]] std::uint16_t port() const noexcept;
  /// Answers every get that waits for a key which begins and ends so, now and later, with this reason: the key will not
  /// come. Empty texts fit every key; of several reasons for a key the first one counts. Any thread.
  void refuse_waiting(const std::string& reason, const std::string& begins = "", const std::string& ends = "");
  /// How many requests it has got. Any thread.
  [[nodiscard]] std::uint64_t requests() const noexcept;

 private:
  struct Impl;
  HomeProcess home_;
  std::unique_ptr<Impl> impl_;
};

/// One connection. Thread-safe (calls are serialised). All calls throw Timeout at the deadline, Error on a lost server.
class StoreClient {
 public:
  /// Retries a refused connection until the deadline (the server may start later). Throws Protocol when what
  /// serves there does not know `secret`. Where another process is that rank, every call throws Error or PeerLost that
  /// names both.
  StoreClient(const std::string& host, std::uint16_t port, const Secret& secret, Deadline deadline,
              const StoreIdentity& who = {});
  ~StoreClient();
  StoreClient(const StoreClient&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;
  /// Throws Error where the server keeps enough of this client's (StoreLimits); the connection stays usable.
  void set(const std::string& key, ByteView value);
  /// The server sets the key when this connection ends: when this object or its process ends, or its host cannot be
  /// reached any more, which the server's kernel notices after some seconds. The last call counts.
  void set_at_end(const std::string& key, ByteView value);
  /// Waits until the key exists; `deadline` bounds the wait. The Timeout message names the key. Throws PeerLost with
  /// the server's reason where the key was refused.
  [[nodiscard]] Bytes get(const std::string& key, Deadline deadline);
  /// Waits until all keys exist: one request, however many they are. At the deadline those that are missing are empty;
  /// throws Timeout where the server does not say which.
  [[nodiscard]] std::vector<std::optional<Bytes>> get_all(const std::vector<std::string>& keys, Deadline deadline);
  /// Atomic add on an integer key (created as 0); returns the new value.
  std::int64_t add(const std::string& key, std::int64_t amount);
  /// As StoreServer::refuse_waiting(), for all keys that begin so. Returns the reason that counts: `reason`, or what
  /// was said before it.
  std::string refuse(const std::string& reason, const std::string& begins);
  /// This side's address of the connection: an address by which peers that reach the store can reach this host.
  [[nodiscard]] std::string local_address() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ringtune
