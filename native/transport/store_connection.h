// One client of the store's server: its socket, what came and what goes, and whether it has proved that it belongs to
// the job.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/fd.h"
#include "transport/handshake.h"
#include "transport/socket.h"
#include "transport/store_wire.h"
#include "transport/wire.h"

namespace ringtune {

struct StoreConnection {
  /// Encrypts it where this process uses TLS. Throws Error when there is no descriptor left.
  explicit StoreConnection(Fd socket);
  std::string host;  // the client's; empty where it has no address
  Fd fd;
  FrameAssembler in;
  SendQueue out;
  /// Until the client has proved that it knows the secret it is served nothing, and may stay for so long.
  bool proven = false;
  bool greeted = false;
  Deadline until = Deadline::after(kProofTimeNs);
  std::optional<Handshake> handshake;  // once it has said hello
  StoreClaim claim;                    // from then on; proved as the secret is
  std::string refusal;                 // why it is served nothing although it has proved that
  /// Starts a get. Throws Protocol where one waits already: a client asks one thing at a time.
  void wait(std::uint32_t request);
  void answer(std::uint32_t request, StoreStatus status, ByteView value);
  /// Reads the rest of a kAtEnd. Throws Protocol, for more than kMaxSentenceBytes as well.
  void keep_for_end(ByteReader& fields);
  [[nodiscard]] bool is_launcher() const noexcept { return claim.role == StoreRole::kLauncher; }
  std::optional<std::uint32_t> waiting;                 // the get that has no answer yet
  std::optional<std::pair<std::string, Bytes>> at_end;  // what is set when it ends
};

/// Takes a step of the handshake; true when the client has proved that it knows the secret. Throws Protocol.
[[nodiscard]] bool prove(StoreConnection& connection, const Secret& secret);
/// Names both where another process is, at the other end of `first`, the rank that `late` claims to be; else empty.
[[nodiscard]] std::string clash_of(const StoreConnection& first, const StoreConnection& late);

}  // namespace ringtune
