// Clients of a store's server on plain sockets, which say what a test likes.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

#include "fabrics.h"
#include "transport/socket.h"
#include "transport/store_wire.h"
#include "transport/wire.h"

namespace ringtune::testing_support {

inline Bytes text(const std::string& value) {
  const ByteView view = std::as_bytes(std::span(value));
  return Bytes(view.begin(), view.end());
}

inline Fd raw_client(std::uint16_t port) {
  ConnectAttempt attempt = start_connect(resolve("127.0.0.1", port).front());
  EXPECT_EQ(attempt.error, 0);
  EXPECT_TRUE(poll_socket(attempt.fd.get(), POLLOUT, seconds(10)));
  return std::move(attempt.fd);
}

/// Says hello as `claim`; returns what a proof has to cover.
inline Handshake say_hello(int fd, const StoreClaim& claim) {
  Handshake handshake{.caller = fresh_nonce()};
  ByteWriter hello;
  hello.u32(kStoreMagic);
  hello.raw(handshake.caller);
  hello.raw(claim.encode());
  (void)write_some(fd, hello.bytes());
  std::array<std::byte, kStoreChallengeBytes> challenge;
  for (std::size_t have = 0; have < challenge.size();) {
    if (!poll_socket(fd, POLLIN, seconds(10))) throw std::runtime_error("no challenge");
    const Transfer transfer = read_some(fd, std::span(challenge).subspan(have));
    if (transfer.closed) throw std::runtime_error("closed before the challenge");
    have += transfer.bytes;
  }
  std::copy_n(challenge.begin() + sizeof(kStoreMagic), sizeof(Nonce), handshake.listener.begin());
  return handshake;
}

/// A client that knows the secret and then says what it likes.
inline Fd proven_client(std::uint16_t port, const StoreClaim& claim = {}) {
  Fd fd = raw_client(port);
  const Handshake handshake = say_hello(fd.get(), claim);
  (void)write_some(fd.get(), handshake.proof(test_secret(), Side::kCaller, store_purpose(claim)));
  return fd;
}

/// Takes one connection as a store does.
inline Fd serve_one(int listener) {
  if (!poll_socket(listener, POLLIN, seconds(10))) throw std::runtime_error("nobody connects");
  std::optional<Fd> fd = accept_tcp(listener);
  const auto take = [&](std::size_t count) {  // and no byte of what follows
    Bytes said(count);
    for (std::span<std::byte> rest(said); !rest.empty();) {
      if (!poll_socket(fd->get(), POLLIN, seconds(10))) throw std::runtime_error("the client says nothing");
      rest = rest.subspan(read_some(fd->get(), rest).bytes);
    }
    return said;
  };
  const Bytes hello = take(kStoreHelloBytes);
  ByteReader reader(hello);
  (void)reader.u32();
  Handshake handshake{.listener = fresh_nonce()};
  reader.raw(handshake.caller);
  const StoreClaim claim = StoreClaim::decode(ByteView(hello).subspan(sizeof(kStoreMagic) + sizeof(Nonce)));
  ByteWriter challenge;
  challenge.u32(kStoreMagic);
  challenge.raw(handshake.listener);
  challenge.raw(handshake.proof(test_secret(), Side::kListener, store_purpose(claim)));
  (void)write_some(fd->get(), challenge.bytes());
  (void)take(sizeof(Digest));
  return std::move(*fd);
}

/// Reads so many frames of a client, which sends one after the other.
inline void read_frames(int fd, int count) {
  FrameAssembler in(kStoreMaxFrameBytes);
  while (count > 0) {
    if (in.next()) {
      --count;
      continue;
    }
    if (!poll_socket(fd, POLLIN, seconds(20))) throw std::runtime_error("the client says nothing");
    in.filled(read_some(fd, in.space()).bytes);
  }
}

/// Waits until the server has closed the connection.
inline void expect_closed(int fd) {
  std::byte byte{};
  while (true) {
    ASSERT_TRUE(poll_socket(fd, POLLIN, seconds(10))) << "the server keeps a malformed client";
    if (read_some(fd, {&byte, 1}).closed) return;
  }
}

}  // namespace ringtune::testing_support
