// What store client and server say to each other.
//
// Both prove that they know the job's secret: client {kStoreMagic, nonce, claim}, server {kStoreMagic, nonce, proof},
// client {proof} (see handshake.h). Both proofs cover the claim, so nobody on the way can make it another's. Then
// frames: client {u8 operation, u32 request, ...}, server {u32 request, u8 status, blob}. A get is answered when all
// its keys exist; a cancelled get is answered with kMissing unless its answer is under way.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "base/sha256.h"
#include "transport/handshake.h"
#include "transport/store.h"

namespace ringtune {

inline constexpr std::uint32_t kStoreMagic = 0x33535452;  // "RTS3" as it stands on the wire
inline constexpr std::size_t kStoreChallengeBytes = sizeof(kStoreMagic) + sizeof(Nonce) + sizeof(Digest);
inline constexpr std::size_t kStoreMaxFrameBytes = std::size_t{1} << 30;
inline constexpr std::size_t kMaxAnswerBytes = kStoreMaxFrameBytes - 64;
/// Most bytes of a request: what a client may set, and its key.
[[nodiscard]] constexpr std::size_t most_asked(StoreRole role) noexcept {
  return role == StoreRole::kLauncher ? kStoreMaxFrameBytes : StoreLimits{}.client_bytes + (std::size_t{64} << 10);
}
/// What a client leaves for its end, and why keys will not come, is a sentence.
inline constexpr std::size_t kMaxSentenceBytes = std::size_t{64} << 10;
/// Throws Protocol for more.
void check_sentence(std::size_t bytes);

/// Who a client is: its identity, and the process by which two that claim to be the same rank are told apart.
struct StoreClaim {
  static constexpr std::size_t kBytes = 1 + 4 + sizeof(Digest) + 4 + 4;
  StoreRole role = StoreRole::kOther;
  std::int32_t rank = -1;
  Digest job{};  // its name's hash
  std::uint32_t pid = 0;
  std::uint32_t process = 0;  // random, for hosts on which processes have the same number

  /// Of this process.
  [[nodiscard]] static StoreClaim of(const StoreIdentity& who);
  [[nodiscard]] Bytes encode() const;
  [[nodiscard]] static StoreClaim decode(ByteView bytes);
  /// Whether another process claims to be the same rank of the same job.
  [[nodiscard]] bool clashes(const StoreClaim& other) const noexcept {
    return role == StoreRole::kRank && other.role == role && rank == other.rank && job == other.job &&
           (pid != other.pid || process != other.process);
  }
};
inline constexpr std::size_t kStoreHelloBytes = sizeof(kStoreMagic) + sizeof(Nonce) + StoreClaim::kBytes;

/// What a connection to a store is for, in its handshake.
[[nodiscard]] Bytes store_purpose(const StoreClaim& claim);

enum class StoreOp : std::uint8_t {
  kSet = 1,     // string key, blob value -> empty blob
  kGet = 2,     // string key -> the value
  kCancel = 3,  // of the get with this request number; no answer of its own
  kAdd = 4,     // string key, i64 amount -> i64, the new value
  kGetAll =
      5,  // u32 count, string keys -> for each key {u8 there, blob value}; also when cancelled, with what is there
  kRefuse = 6,  // string reason, begins, ends -> the reason that counts, see store_waiting.h
  kAtEnd = 7,   // string key, blob value -> empty blob; set when this connection ends, whatever ends it
};

enum class StoreStatus : std::uint8_t { kOk = 0, kMissing = 1, kRefused = 2 };  // refused: the blob says why

}  // namespace ringtune
