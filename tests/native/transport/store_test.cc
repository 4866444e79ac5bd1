#include <poll.h>

#include <array>

#include "base/error.h"
#include "fabrics.h"
#include "raw_store_client.h"
#include "transport/peer_info.h"
#include "transport/socket.h"
#include "transport/store_wire.h"

namespace ringtune::testing_support {
namespace {

using StoreTest = LeakChecked;

TEST_F(StoreTest, KeepsWhatWasSetLast) {
  const StoreServer server("127.0.0.1", 0, test_secret());
  StoreClient a("127.0.0.1", server.port(), test_secret(), seconds(10));
  StoreClient b("localhost", server.port(), test_secret(), seconds(10));
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
    server = std::make_unique<StoreServer>("::1", std::uint16_t{0}, test_secret());
  } catch (const Error& error) {
    GTEST_SKIP() << "this machine has no IPv6: " << error.what();
  }
  StoreClient client("::1", server->port(), test_secret(), seconds(10));
  client.set("key", text("six"));
  EXPECT_EQ(client.get("key", seconds(10)), text("six"));
  EXPECT_EQ(client.local_address(), "::1");
}

TEST_F(StoreTest, SetsWhatAClientLeavesForItsEnd) {
  const StoreServer server("127.0.0.1", 0, test_secret());
  StoreClient other("127.0.0.1", server.port(), test_secret(), seconds(10));
  {
    StoreClient client("127.0.0.1", server.port(), test_secret(), seconds(10));
    client.set_at_end("gone", text("early"));
    client.set_at_end("gone", text("late"));
    EXPECT_THROW((void)other.get("gone", Deadline::after(0)), Timeout);
  }
  EXPECT_EQ(other.get("gone", seconds(20)), text("late"));
}

TEST_F(StoreTest, AGetBeforeTheSetWaits) {
  const StoreServer server("127.0.0.1", 0, test_secret());
  std::thread getter([&] {
    StoreClient client("127.0.0.1", server.port(), test_secret(), seconds(10));
    EXPECT_EQ(client.get("late", seconds(20)), text("value"));
  });
  StoreClient client("127.0.0.1", server.port(), test_secret(), seconds(10));
  client.set("late", text("value"));
  getter.join();
}

TEST_F(StoreTest, ATimeoutNamesTheKeyAndLeavesTheConnectionUsable) {
  const StoreServer server("127.0.0.1", 0, test_secret());
  StoreClient client("127.0.0.1", server.port(), test_secret(), seconds(10));
  const Timeout error = expect_throw<Timeout>([&] { (void)client.get("absent/key", milliseconds(20)); });
  EXPECT_NE(std::string(error.what()).find("absent/key"), std::string::npos) << error.what();
  client.set("absent/key", text("now"));
  EXPECT_EQ(client.get("absent/key", milliseconds(0)), text("now"));  // no time to wait, but it is there
}

TEST_F(StoreTest, AGetOfManyKeysIsOneRequest) {
  const StoreServer server("127.0.0.1", 0, test_secret());
  StoreClient a("127.0.0.1", server.port(), test_secret(), seconds(10));
  std::vector<std::string> keys;
  for (int i = 0; i < 50; ++i) keys.push_back("key/" + std::to_string(i));
  std::thread getter([&] {
    StoreClient b("127.0.0.1", server.port(), test_secret(), seconds(10));
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
  const StoreServer server("127.0.0.1", 0, test_secret());
  StoreClient client("127.0.0.1", server.port(), test_secret(), seconds(10));
  client.set("b", text("B"));
  client.set("d", {});
  const std::vector<std::optional<Bytes>> values = client.get_all({"a", "b", "c", "d"}, milliseconds(20));
  EXPECT_EQ(values, (std::vector<std::optional<Bytes>>{{}, text("B"), {}, Bytes()}));
  client.set("a", text("A"));
  EXPECT_EQ(client.get("a", seconds(10)), text("A")) << "the connection stays usable";
}

TEST_F(StoreTest, ARendezvousTakesTwoRequestsPerRank) {
  constexpr int kRanks = 24;
  const StoreServer server("127.0.0.1", 0, test_secret());
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      StoreClient client("127.0.0.1", server.port(), test_secret(), seconds(10));
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
  const StoreServer server("127.0.0.1", 0, test_secret());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      StoreClient client("127.0.0.1", server.port(), test_secret(), seconds(10));
      for (int n = 0; n < 250; ++n) client.add("count", 3);
    });
  }
  for (std::thread& thread : threads) thread.join();
  StoreClient client("127.0.0.1", server.port(), test_secret(), seconds(10));
  EXPECT_EQ(client.add("count", -1), 2999);
  client.set("word", text("abc"));
  const Error error = expect_throw<Error>([&] { client.add("word", 1); });
  EXPECT_NE(std::string(error.what()).find("word"), std::string::npos) << error.what();
  EXPECT_EQ(client.add("count", 1), 3000) << "a refused request leaves the connection usable";
}

TEST_F(StoreTest, CarriesLargeValues) {
  const StoreServer server("127.0.0.1", 0, test_secret());
  StoreClient a("127.0.0.1", server.port(), test_secret(), seconds(10));
  StoreClient b("127.0.0.1", server.port(), test_secret(), seconds(10));
  const Bytes large(20'000'000, std::byte{42});
  a.set("large", large);
  EXPECT_EQ(b.get("large", seconds(20)), large);
}

TEST_F(StoreTest, ServesManyClientsThatWaitForOneKey) {
  const StoreServer server("127.0.0.1", 0, test_secret());
  std::vector<std::thread> threads;
  for (int i = 0; i < 32; ++i) {
    threads.emplace_back([&, i] {
      StoreClient client("127.0.0.1", server.port(), test_secret(), seconds(10));
      client.set("here/" + std::to_string(i), text("x"));
      EXPECT_EQ(client.get("go", seconds(20)), text("!"));
    });
  }
  StoreClient client("127.0.0.1", server.port(), test_secret(), seconds(10));
  for (int i = 0; i < 32; ++i) EXPECT_EQ(client.get("here/" + std::to_string(i), seconds(20)), text("x"));
  client.set("go", text("!"));
  for (std::thread& thread : threads) thread.join();
}

TEST_F(StoreTest, AMalformedClientLosesOnlyItsOwnConnection) {
  const StoreServer server("127.0.0.1", 0, test_secret());
  StoreClient good("127.0.0.1", server.port(), test_secret(), seconds(10));
  const std::vector<std::string> garbage{
      "GET / HTTP/1.1\r\n\r\n",                                         // by a client that has proved nothing
      std::string("\xff\xff\xff\xff", 4),                               // a frame beyond the limit
      std::string("\x05\0\0\0\x09\0\0\0\0", 9),                         // unknown operation
      std::string("\x01\0\0\0\x01", 5),                                 // truncated request
      std::string("\x0a\0\0\0\x02\x01\0\0\0\xff\xff\xff\xff\x41", 14),  // a key longer than its frame
      std::string("\x09\0\0\0\x05\x01\0\0\0\xff\xff\xff\xff", 13),      // more keys than its frame
  };
  for (const std::string& bytes : garbage) {
    const Fd fd = bytes.starts_with("GET") ? raw_client(server.port()) : proven_client(server.port());
    EXPECT_EQ(write_some(fd.get(), std::as_bytes(std::span(bytes))).bytes, bytes.size());
    expect_closed(fd.get());
    good.set("alive", text(bytes));
    EXPECT_EQ(good.get("alive", seconds(10)), text(bytes));
  }
}

TEST_F(StoreTest, AClientThatVanishesWhileItWaitsDisturbsNobody) {
  const StoreServer server("127.0.0.1", 0, test_secret());
  StoreClient good("127.0.0.1", server.port(), test_secret(), seconds(10));
  {
    const Fd fd = proven_client(server.port());
    const std::string get("\x0a\0\0\0\x02\x01\0\0\0\x01\0\0\0k", 14);
    EXPECT_EQ(write_some(fd.get(), std::as_bytes(std::span(get))).bytes, get.size());
  }
  good.set("k", text("v"));
  EXPECT_EQ(good.get("k", seconds(10)), text("v"));
}

TEST_F(StoreTest, AClientWaitsForAServerThatStartsLater) {
  std::uint16_t port = 0;
  {
    port = StoreServer("127.0.0.1", 0, test_secret()).port();
  }
  const Timeout error =
      expect_throw<Timeout>([&] { StoreClient client("127.0.0.1", port, test_secret(), milliseconds(50)); });
  EXPECT_NE(std::string(error.what()).find("127.0.0.1:" + std::to_string(port)), std::string::npos) << error.what();
  std::thread client_thread([&] {
    StoreClient client("127.0.0.1", port, test_secret(), seconds(20));
    client.set("key", {});
    EXPECT_TRUE(client.get("done", seconds(20)).empty());
  });
  const StoreServer server("127.0.0.1", port, test_secret());
  StoreClient client("127.0.0.1", port, test_secret(), seconds(20));
  EXPECT_TRUE(client.get("key", seconds(20)).empty());
  client.set("done", {});
  client_thread.join();
}

TEST_F(StoreTest, ALostServerIsAnError) {
  auto server = std::make_unique<StoreServer>("127.0.0.1", std::uint16_t{0}, test_secret());
  StoreClient client("127.0.0.1", server->port(), test_secret(), seconds(10));
  std::thread closer([&] { server.reset(); });
  EXPECT_THROW((void)client.get("never", Deadline::never()), Error);
  closer.join();
  EXPECT_THROW(client.set("key", {}), Error);
}

TEST_F(StoreTest, AServerThatStandsStillIsNotLost) {
  const Fd listener = listen_tcp("127.0.0.1", 0);
  const std::uint16_t port = local_port(listener.get());
  std::thread slow([&] {
    const Fd fd = serve_one(listener.get());
    read_frames(fd.get(), 3);  // get, cancel, set: nothing is answered before the last one has come
    ByteWriter answers;
    for (std::uint32_t request = 1; request <= 2; ++request) {
      ByteWriter answer;
      answer.u32(request);
      answer.u8(static_cast<std::uint8_t>(request == 1 ? StoreStatus::kMissing : StoreStatus::kOk));
      answer.blob({});
      answers.blob(answer.bytes());
    }
    (void)write_some(fd.get(), answers.bytes());
    ASSERT_TRUE(poll_socket(fd.get(), POLLIN, seconds(20)));  // until the client ends
  });
  {
    StoreClient client("127.0.0.1", port, test_secret(), seconds(10));
    const Timeout error = expect_throw<Timeout>([&] { (void)client.get("key", milliseconds(10)); });
    EXPECT_NE(std::string(error.what()).find("does not answer"), std::string::npos) << error.what();
    client.set("key", text("value"));
  }
  slow.join();
}

TEST_F(StoreTest, AnAddressThatCannotBeBoundIsNamed) {
  const StoreServer first("127.0.0.1", 0, test_secret());
  const Error error = expect_throw<Error>([&] { StoreServer second("127.0.0.1", first.port(), test_secret()); });
  EXPECT_NE(std::string(error.what()).find("127.0.0.1:" + std::to_string(first.port())), std::string::npos);
  EXPECT_THROW(StoreServer("no-such-host.invalid", 0, test_secret()), Error);
}

TEST_F(StoreTest, WhoWaitsInVainIsToldWhy) {
  StoreServer server("127.0.0.1", 0, test_secret());
  StoreClient client("127.0.0.1", server.port(), test_secret(), seconds(10));
  client.set("there", text("value"));
  const auto refused = [&](const auto& ask) {
    return std::string(expect_throw<Error>(ask).what()) == "rank 1 was killed";
  };
  std::thread waits([&] {
    StoreClient other("127.0.0.1", server.port(), test_secret(), seconds(10));
    EXPECT_TRUE(refused([&] { (void)other.get("never", seconds(20)); }));
  });
  std::thread waits_for_many([&] {
    StoreClient other("127.0.0.1", server.port(), test_secret(), seconds(10));
    EXPECT_TRUE(refused([&] { (void)other.get_all({"there", "never"}, seconds(20)); }));
  });
  while (server.requests() < 3) std::this_thread::yield();
  server.refuse_waiting("rank 1 was killed");
  waits.join();
  waits_for_many.join();
  EXPECT_TRUE(refused([&] { (void)client.get("later", seconds(20)); }));
  EXPECT_EQ(client.get("there", seconds(10)), text("value")) << "what is there is still given";
  client.set("new", text("one"));
  EXPECT_EQ(client.get("new", seconds(10)), text("one"));
}

TEST_F(StoreTest, OnlyKeysThatARefusalCoversAreRefused) {
  StoreServer server("127.0.0.1", 0, test_secret());
  StoreClient client("127.0.0.1", server.port(), test_secret(), seconds(10));
  server.refuse_waiting("rank 1 has ended", "job.", "/1");
  const auto refused = [&](const std::string& key) {
    return std::string(expect_throw<PeerLost>([&] { (void)client.get(key, seconds(20)); }).what());
  };
  EXPECT_EQ(refused("job.3/rank/1"), "rank 1 has ended");
  EXPECT_EQ(expect_throw<PeerLost>([&] { (void)client.get_all({"job.3/rank/1"}, seconds(20)); }).rank(), kUnknownRank);
  for (const std::string key : {"job.3/rank/11", "job.3/rank/1/more", "other.3/rank/1"}) {
    EXPECT_THROW((void)client.get(key, seconds(0)), Timeout) << key;
  }
}

TEST_F(StoreTest, TheFirstReasonOfAJobIsTheOneThatAllAreTold) {
  const StoreServer server("127.0.0.1", 0, test_secret());
  StoreClient waits("127.0.0.1", server.port(), test_secret(), seconds(10));
  std::thread waiting([&] {
    EXPECT_EQ(std::string(expect_throw<PeerLost>([&] { (void)waits.get("job.1/rank/2", seconds(20)); }).what()),
              "cause");
  });
  while (server.requests() < 1) std::this_thread::yield();
  StoreClient client("127.0.0.1", server.port(), test_secret(), seconds(10));
  EXPECT_EQ(client.refuse("cause", "job.1/"), "cause");
  waiting.join();
  EXPECT_EQ(client.refuse("what follows", "job.1/"), "cause");
  EXPECT_EQ(client.refuse("of one group", "job.1/group/"), "cause");
  EXPECT_EQ(client.refuse("another", "job.2/"), "another") << "the next generation begins anew";
  EXPECT_THROW((void)client.get("job.3/rank/0", seconds(0)), Timeout);
}

}  // namespace
}  // namespace ringtune::testing_support
