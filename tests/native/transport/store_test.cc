#include <poll.h>

#include "base/error.h"
#include "fabrics.h"
#include "transport/peer_info.h"
#include "transport/socket.h"

namespace ringtune::testing_support {
namespace {

using StoreTest = LeakChecked;

Bytes text(const std::string& value) {
  const ByteView view = std::as_bytes(std::span(value));
  return Bytes(view.begin(), view.end());
}

TEST_F(StoreTest, KeepsWhatWasSetLast) {
  const StoreServer server("127.0.0.1", 0);
  StoreClient a("127.0.0.1", server.port(), seconds(10));
  StoreClient b("localhost", server.port(), seconds(10));
  a.set("key", text("one"));
  EXPECT_EQ(b.get("key", seconds(10)), text("one"));
  b.set("key", text("two"));
  EXPECT_EQ(a.get("key", seconds(10)), text("two"));
  a.set("empty", {});
  EXPECT_TRUE(b.get("empty", seconds(10)).empty());
  EXPECT_EQ(a.local_address(), "127.0.0.1");
}

TEST_F(StoreTest, ServesIpv6) {
  std::unique_ptr<StoreServer> server;
  try {
    server = std::make_unique<StoreServer>("::1", std::uint16_t{0});
  } catch (const Error& error) {
    GTEST_SKIP() << "this machine has no IPv6: " << error.what();
  }
  StoreClient client("::1", server->port(), seconds(10));
  client.set("key", text("six"));
  EXPECT_EQ(client.get("key", seconds(10)), text("six"));
  EXPECT_EQ(client.local_address(), "::1");
}

TEST_F(StoreTest, AGetBeforeTheSetWaits) {
  const StoreServer server("127.0.0.1", 0);
  std::thread getter([&] {
    StoreClient client("127.0.0.1", server.port(), seconds(10));
    EXPECT_EQ(client.get("late", seconds(20)), text("value"));
  });
  StoreClient client("127.0.0.1", server.port(), seconds(10));
  client.set("late", text("value"));
  getter.join();
}

TEST_F(StoreTest, ATimeoutNamesTheKeyAndLeavesTheConnectionUsable) {
  const StoreServer server("127.0.0.1", 0);
  StoreClient client("127.0.0.1", server.port(), seconds(10));
  const Timeout error = expect_throw<Timeout>([&] { (void)client.get("absent/key", milliseconds(20)); });
  EXPECT_NE(std::string(error.what()).find("absent/key"), std::string::npos) << error.what();
  client.set("absent/key", text("now"));
  EXPECT_EQ(client.get("absent/key", milliseconds(0)), text("now"));  // no time to wait, but it is there
}

TEST_F(StoreTest, AGetOfManyKeysIsOneRequest) {
  const StoreServer server("127.0.0.1", 0);
  StoreClient a("127.0.0.1", server.port(), seconds(10));
  std::vector<std::string> keys;
  for (int i = 0; i < 50; ++i) keys.push_back("key/" + std::to_string(i));
  std::thread getter([&] {
    StoreClient b("127.0.0.1", server.port(), seconds(10));
    const std::vector<std::optional<Bytes>> values = b.get_all(keys, seconds(20));
    ASSERT_EQ(values.size(), 50u);
    for (int i = 0; i < 50; ++i) EXPECT_EQ(values[static_cast<std::size_t>(i)], text(std::to_string(i)));
    EXPECT_TRUE(b.get_all({}, seconds(20)).empty());
  });
  for (int i = 49; i >= 0; --i) a.set(keys[static_cast<std::size_t>(i)], text(std::to_string(i)));
  getter.join();
  EXPECT_EQ(server.requests(), 50u + 1u + 1u);
}

TEST_F(StoreTest, AGetOfManyKeysTellsWhichAreMissing) {
  const StoreServer server("127.0.0.1", 0);
  StoreClient client("127.0.0.1", server.port(), seconds(10));
  client.set("b", text("B"));
  client.set("d", {});
  const std::vector<std::optional<Bytes>> values = client.get_all({"a", "b", "c", "d"}, milliseconds(20));
  EXPECT_EQ(values, (std::vector<std::optional<Bytes>>{{}, text("B"), {}, Bytes()}));
  client.set("a", text("A"));
  EXPECT_EQ(client.get("a", seconds(10)), text("A")) << "the connection stays usable";
}

TEST_F(StoreTest, ARendezvousTakesTwoRequestsPerRank) {
  constexpr int kRanks = 24;
  const StoreServer server("127.0.0.1", 0);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      StoreClient client("127.0.0.1", server.port(), seconds(10));
      FabricOptions options;
      options.rank = rank;
      options.size = kRanks;
      PeerInfo own;
      own.rank = rank;
      own.host = "host" + std::to_string(rank % 3);
      const std::vector<PeerInfo> all = exchange_peer_infos(options, own, client, seconds(20));
      ASSERT_EQ(all.size(), std::size_t{kRanks});
      for (int other = 0; other < kRanks; ++other) EXPECT_EQ(all[static_cast<std::size_t>(other)].rank, other);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(server.requests(), 2u * kRanks);
}

TEST_F(StoreTest, AddsAtomically) {
  const StoreServer server("127.0.0.1", 0);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      StoreClient client("127.0.0.1", server.port(), seconds(10));
      for (int n = 0; n < 250; ++n) client.add("count", 3);
    });
  }
  for (std::thread& thread : threads) thread.join();
  StoreClient client("127.0.0.1", server.port(), seconds(10));
  EXPECT_EQ(client.add("count", -1), 2999);
  client.set("word", text("abc"));
  const Error error = expect_throw<Error>([&] { client.add("word", 1); });
  EXPECT_NE(std::string(error.what()).find("word"), std::string::npos) << error.what();
  EXPECT_EQ(client.add("count", 1), 3000) << "a refused request leaves the connection usable";
}

TEST_F(StoreTest, CarriesLargeValues) {
  const StoreServer server("127.0.0.1", 0);
  StoreClient a("127.0.0.1", server.port(), seconds(10));
  StoreClient b("127.0.0.1", server.port(), seconds(10));
  const Bytes large(20'000'000, std::byte{42});
  a.set("large", large);
  EXPECT_EQ(b.get("large", seconds(20)), large);
}

TEST_F(StoreTest, ServesManyClientsThatWaitForOneKey) {
  const StoreServer server("127.0.0.1", 0);
  std::vector<std::thread> threads;
  for (int i = 0; i < 32; ++i) {
    threads.emplace_back([&, i] {
      StoreClient client("127.0.0.1", server.port(), seconds(10));
      client.set("here/" + std::to_string(i), text("x"));
      EXPECT_EQ(client.get("go", seconds(20)), text("!"));
    });
  }
  StoreClient client("127.0.0.1", server.port(), seconds(10));
  for (int i = 0; i < 32; ++i) EXPECT_EQ(client.get("here/" + std::to_string(i), seconds(20)), text("x"));
  client.set("go", text("!"));
  for (std::thread& thread : threads) thread.join();
}

Fd raw_client(std::uint16_t port) {
  ConnectAttempt attempt = start_connect(resolve("127.0.0.1", port).front());
  EXPECT_EQ(attempt.error, 0);
  EXPECT_TRUE(poll_socket(attempt.fd.get(), POLLOUT, seconds(10)));
  return std::move(attempt.fd);
}

/// Waits until the server has closed the connection.
void expect_closed(int fd) {
  std::byte byte{};
  while (true) {
    ASSERT_TRUE(poll_socket(fd, POLLIN, seconds(10))) << "the server keeps a malformed client";
    if (read_some(fd, {&byte, 1}).closed) return;
  }
}

TEST_F(StoreTest, AMalformedClientLosesOnlyItsOwnConnection) {
  const StoreServer server("127.0.0.1", 0);
  StoreClient good("127.0.0.1", server.port(), seconds(10));
  const std::string magic = "RTS1";
  const std::vector<std::string> garbage{
      "GET / HTTP/1.1\r\n\r\n",
      magic + std::string("\xff\xff\xff\xff", 4),                               // a frame beyond the limit
      magic + std::string("\x05\0\0\0\x09\0\0\0\0", 9),                         // unknown operation
      magic + std::string("\x01\0\0\0\x01", 5),                                 // truncated request
      magic + std::string("\x0a\0\0\0\x02\x01\0\0\0\xff\xff\xff\xff\x41", 14),  // a key longer than its frame
      magic + std::string("\x09\0\0\0\x05\x01\0\0\0\xff\xff\xff\xff", 13),      // more keys than its frame
  };
  for (const std::string& bytes : garbage) {
    const Fd fd = raw_client(server.port());
    EXPECT_EQ(write_some(fd.get(), std::as_bytes(std::span(bytes))).bytes, bytes.size());
    expect_closed(fd.get());
    good.set("alive", text(bytes));
    EXPECT_EQ(good.get("alive", seconds(10)), text(bytes));
  }
}

TEST_F(StoreTest, AClientThatVanishesWhileItWaitsDisturbsNobody) {
  const StoreServer server("127.0.0.1", 0);
  StoreClient good("127.0.0.1", server.port(), seconds(10));
  {
    const Fd fd = raw_client(server.port());
    const std::string get = std::string("RTS1") + std::string("\x0a\0\0\0\x02\x01\0\0\0\x01\0\0\0k", 14);
    EXPECT_EQ(write_some(fd.get(), std::as_bytes(std::span(get))).bytes, get.size());
  }
  good.set("k", text("v"));
  EXPECT_EQ(good.get("k", seconds(10)), text("v"));
}

TEST_F(StoreTest, AClientWaitsForAServerThatStartsLater) {
  std::uint16_t port = 0;
  {
    port = StoreServer("127.0.0.1", 0).port();
  }
  const Timeout error = expect_throw<Timeout>([&] { StoreClient client("127.0.0.1", port, milliseconds(50)); });
  EXPECT_NE(std::string(error.what()).find("127.0.0.1:" + std::to_string(port)), std::string::npos) << error.what();
  std::thread client_thread([&] {
    StoreClient client("127.0.0.1", port, seconds(20));
    client.set("key", {});
    EXPECT_TRUE(client.get("done", seconds(20)).empty());
  });
  const StoreServer server("127.0.0.1", port);
  StoreClient client("127.0.0.1", port, seconds(20));
  EXPECT_TRUE(client.get("key", seconds(20)).empty());
  client.set("done", {});
  client_thread.join();
}

TEST_F(StoreTest, ALostServerIsAnError) {
  auto server = std::make_unique<StoreServer>("127.0.0.1", std::uint16_t{0});
  StoreClient client("127.0.0.1", server->port(), seconds(10));
  std::thread closer([&] { server.reset(); });
  EXPECT_THROW((void)client.get("never", Deadline::never()), Error);
  closer.join();
  EXPECT_THROW(client.set("key", {}), Error);
}

TEST_F(StoreTest, AnAddressThatCannotBeBoundIsNamed) {
  const StoreServer first("127.0.0.1", 0);
  const Error error = expect_throw<Error>([&] { StoreServer second("127.0.0.1", first.port()); });
  EXPECT_NE(std::string(error.what()).find("127.0.0.1:" + std::to_string(first.port())), std::string::npos);
  EXPECT_THROW(StoreServer("no-such-host.invalid", 0), Error);
}

}  // namespace
}  // namespace ringtune::testing_support
