// Clients of a store's server on plain sockets, which say what a test likes.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <stdexcept>
#include <string>

#include "fabrics.h"
#include "transport/socket.h"
#include "transport/store_wire.h"

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

/// Waits until the server has closed the connection.
inline void expect_closed(int fd) {
  std::byte byte{};
  while (true) {
    ASSERT_TRUE(poll_socket(fd, POLLIN, seconds(10))) << "the server keeps a malformed client";
    if (read_some(fd, {&byte, 1}).closed) return;
  }
}

}  // namespace ringtune::testing_support
