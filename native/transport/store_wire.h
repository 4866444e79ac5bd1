// What store client and server say to each other.
//
// Both prove that they know the job's secret: client {kStoreMagic, nonce}, server {kStoreMagic, nonce, proof}, client
// {proof} (see handshake.h). Then frames: client {u8 operation, u32 request, ...}, server {u32 request, u8 status,
// blob}. A get is answered when all its keys exist; a cancelled get is answered with kMissing unless its answer is
// under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "transport/handshake.h"

namespace ringtune {

inline constexpr std::uint32_t kStoreMagic = 0x32535452;  // "RTS2" as it stands on the wire
inline constexpr std::size_t kStoreHelloBytes = sizeof(kStoreMagic) + sizeof(Nonce);
inline constexpr std::size_t kStoreChallengeBytes = kStoreHelloBytes + sizeof(Digest);
inline constexpr std::size_t kStoreMaxFrameBytes = std::size_t{1} << 30;

/// What a connection to a store is for, in its handshake.
[[nodiscard]] inline ByteView store_purpose() noexcept { return std::as_bytes(std::span(std::string_view("store"))); }

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
