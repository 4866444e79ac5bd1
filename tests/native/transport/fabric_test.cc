// The rendezvous of a job and strangers at its door; what links do is in link_contract_test.cc.
#include <poll.h>

#include <functional>

#include "base/error.h"
#include "fabrics.h"
#include "transport/shared_waker.h"
#include "transport/socket.h"
#include "transport/tcp_bootstrap.h"

namespace ringtune::testing_support {
namespace {

using FabricTest = LeakChecked;
using Adjust = std::function<void(FabricOptions&)>;

/// Runs the rendezvous of one rank with its own connection to the store.
std::unique_ptr<Fabric> meet(const StoreServer& server, int rank, int size, const Adjust& adjust,
                             std::unique_ptr<StoreClient>& client, Deadline deadline) {
  client = std::make_unique<StoreClient>("127.0.0.1", server.port(), test_secret(), seconds(20));
  FabricOptions options;
  options.rank = rank;
  options.size = size;
  options.secret = kTestSecret;
  options.host = "test-host";
  adjust(options);
  return make_fabric(options, client.get(), deadline);
}

struct Bootstrap {
  StoreServer server{"127.0.0.1", 0, test_secret()};
  std::unique_ptr<StoreClient> clients[2];
  std::unique_ptr<Fabric> fabrics[2];
  std::string errors[2];

  explicit Bootstrap(const Adjust& adjust) {
    std::thread other([&] { run(1, adjust); });
    run(0, adjust);
    other.join();
  }
  void run(int rank, const Adjust& adjust) {
    try {
      fabrics[rank] = meet(server, rank, 2, adjust, clients[rank], seconds(20));
    } catch (const Error& error) {
      errors[rank] = error.what();
    }
  }
};

TEST_F(FabricTest, AJobOfOneNeedsNoStore) {
  FabricOptions options;
  options.host = "alone";
  const std::unique_ptr<Fabric> fabric = make_fabric(options, nullptr, milliseconds(0));
  EXPECT_EQ(fabric->size(), 1);
  EXPECT_EQ(fabric->hosts(), std::vector<std::string>{"alone"});
  EXPECT_THROW((void)fabric->connect(0, "self", seconds(1)), InvalidArgument);
  fabric->start_monitor([](int, const std::string&) { FAIL(); });
  fabric->leave();
  EXPECT_TRUE(fabric->wait_left(milliseconds(0)));
  fabric->abort("over");
}

TEST_F(FabricTest, ARankOutsideTheJobIsRefused) {
  FabricOptions options;
  options.rank = 2;
  options.size = 2;
  EXPECT_THROW((void)make_fabric(options, nullptr, milliseconds(0)), InvalidArgument);
}

TEST_F(FabricTest, ATimeoutNamesTheMissingRanks) {
  const StoreServer server("127.0.0.1", 0, test_secret());
  std::unique_ptr<StoreClient> client;
  const Timeout error =
      expect_throw<Timeout>([&] { (void)meet(server, 1, 4, [](FabricOptions&) {}, client, milliseconds(50)); });
  EXPECT_NE(std::string(error.what()).find("ranks 0, 2, 3 of 4"), std::string::npos) << error.what();
}

TEST_F(FabricTest, TheSameHostSharesMemory) {
  const Bootstrap bootstrap([](FabricOptions&) {});
  ASSERT_TRUE(bootstrap.fabrics[0] && bootstrap.fabrics[1]) << bootstrap.errors[0] << bootstrap.errors[1];
  EXPECT_EQ(bootstrap.fabrics[0]->viable(1), "shm");
  EXPECT_EQ(bootstrap.fabrics[1]->viable(0), "shm");
  EXPECT_EQ(bootstrap.fabrics[0]->hosts(), (std::vector<std::string>{"test-host", "test-host"}));
}

TEST_F(FabricTest, DifferentHostsUseTcp) {
  const Bootstrap bootstrap([](FabricOptions& options) { options.host = "host-" + std::to_string(options.rank); });
  ASSERT_TRUE(bootstrap.fabrics[0] && bootstrap.fabrics[1]) << bootstrap.errors[0] << bootstrap.errors[1];
  EXPECT_EQ(bootstrap.fabrics[0]->viable(1), "tcp");
  EXPECT_EQ(bootstrap.fabrics[1]->viable(0), "tcp");
  EXPECT_EQ(bootstrap.fabrics[1]->hosts(), (std::vector<std::string>{"host-0", "host-1"}));
}

TEST_F(FabricTest, OneRankThatWantsTcpIsEnough) {
  const Bootstrap bootstrap([](FabricOptions& options) {
    if (options.rank == 1) options.transport = TransportChoice::kTcp;
  });
  ASSERT_TRUE(bootstrap.fabrics[0] && bootstrap.fabrics[1]) << bootstrap.errors[0] << bootstrap.errors[1];
  EXPECT_EQ(bootstrap.fabrics[0]->viable(1), "tcp");
  EXPECT_EQ(bootstrap.fabrics[1]->viable(0), "tcp");
}

TEST_F(FabricTest, SharedMemoryAcrossHostsIsRefusedWithTheReason) {
  const Bootstrap bootstrap([](FabricOptions& options) {
    options.host = "host-" + std::to_string(options.rank);
    options.transport = TransportChoice::kShm;
  });
  EXPECT_NE(bootstrap.errors[0].find("'host-0' and 'host-1'"), std::string::npos) << bootstrap.errors[0];
  EXPECT_NE(bootstrap.errors[1].find("'host-1' and 'host-0'"), std::string::npos) << bootstrap.errors[1];
  for (const std::string& error : bootstrap.errors) {
    EXPECT_NE(error.find("RINGTUNE_TRANSPORT=auto"), std::string::npos) << error;
  }
}

TEST_F(FabricTest, JobsInOneStoreDoNotMeet) {
  const StoreServer server("127.0.0.1", 0, test_secret());
  std::unique_ptr<StoreClient> clients[4];
  std::unique_ptr<Fabric> fabrics[4];
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const auto adjust = [i](FabricOptions& options) {
        options.job = i < 2 ? "first" : "second";
        options.host = options.job;
      };
      fabrics[i] = meet(server, i % 2, 2, adjust, clients[i], seconds(20));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(fabrics[1]->hosts(), (std::vector<std::string>{"first", "first"}));
  EXPECT_EQ(fabrics[3]->hosts(), (std::vector<std::string>{"second", "second"}));
}

class BootstrapTest : public LeakChecked {
 protected:
  [[nodiscard]] BootstrapRequest request(int peer, const std::string& channel, Deadline deadline) const {
    return {.peer = peer,
            .peer_name = "rank " + std::to_string(peer),
            .channel = channel,
            .deadline = deadline,
            .aborted = &aborted_};
  }
  AbortState aborted_;
};

Fd stranger(std::uint16_t port) {
  ConnectAttempt attempt = start_connect(resolve("127.0.0.1", port).front());
  EXPECT_EQ(attempt.error, 0);
  EXPECT_TRUE(poll_socket(attempt.fd.get(), POLLOUT, seconds(10)));
  return std::move(attempt.fd);
}

TEST_F(BootstrapTest, StrangersDoNotKeepRanksApart) {
  SharedWaker waker_a(WakerReach::kProcess, 0);
  SharedWaker waker_b(WakerReach::kProcess, 0);
  TcpBootstrap a("job", 0, "127.0.0.1", test_secret(), waker_a);
  TcpBootstrap b("job", 1, "127.0.0.1", test_secret(), waker_b);
  std::vector<Fd> strangers;
  for (const std::string& bytes : {std::string("GET / HTTP/1.1\r\n\r\n"), std::string("\x03\0", 2), std::string(),
                                   std::string("\x08\0\0\0garbage!", 12), std::string(20'000, 'x')}) {
    strangers.push_back(stranger(a.port()));
    if (!bytes.empty()) (void)write_some(strangers.back().get(), std::as_bytes(std::span(bytes)));
  }
  Fd dialled;
  std::thread other([&] { dialled = b.dial(request(0, "c", seconds(20)), "127.0.0.1", a.port()); });
  const Fd accepted = a.accept(request(1, "c", seconds(20)));
  other.join();
  EXPECT_TRUE(accepted.valid());
  EXPECT_TRUE(dialled.valid());
  // The silent and the slow stranger are still there; they must not keep the waker awake.
  const std::int64_t before = thread_cpu_ns();
  waker_a.wait(waker_a.prepare(), milliseconds(100));
  EXPECT_LT(thread_cpu_ns() - before, 10'000'000);
}

TEST_F(BootstrapTest, AnotherJobIsTurnedAwayAndTold) {
  SharedWaker waker_a(WakerReach::kProcess, 0);
  SharedWaker waker_b(WakerReach::kProcess, 0);
  TcpBootstrap a("job-a", 0, "127.0.0.1", test_secret(), waker_a);
  TcpBootstrap b("job-b", 1, "127.0.0.1", test_secret(), waker_b);
  std::string refusal;
  std::thread other([&] {
    try {
      (void)b.dial(request(0, "c", seconds(20)), "127.0.0.1", a.port());
    } catch (const Protocol& error) {
      refusal = error.what();
      aborted_.give("seen");
      waker_a.notify();
    }
  });
  EXPECT_THROW((void)a.accept(request(1, "c", seconds(20))), PeerLost);  // by aborted_, once the other was refused
  other.join();
  EXPECT_NE(refusal.find("another job"), std::string::npos) << refusal;
}

TEST_F(BootstrapTest, WhoDoesNotKnowTheSecretIsNoPeer) {
  SharedWaker waker_a(WakerReach::kProcess, 0);
  SharedWaker waker_b(WakerReach::kProcess, 0);
  TcpBootstrap a("job", 0, "127.0.0.1", test_secret(), waker_a);
  TcpBootstrap b("job", 1, "127.0.0.1", Secret("another secret"), waker_b);
  std::string refusal;
  std::thread other([&] {
    refusal = expect_throw<Protocol>([&] { (void)b.dial(request(0, "c", seconds(20)), "127.0.0.1", a.port()); }).what();
    aborted_.give("seen");
    waker_a.notify();
  });
  EXPECT_THROW((void)a.accept(request(1, "c", seconds(20))), PeerLost);  // by aborted_, once the other has seen it
  other.join();
  EXPECT_NE(refusal.find("does not know the secret"), std::string::npos) << refusal;
}

/// What a rank says when it opens a channel, as tcp_bootstrap.cc describes it.
Bytes hello(int from, int to, const std::string& channel, const Nonce& nonce) {
  ByteWriter writer;
  writer.u32(0x4c475452);
  writer.u32(3);
  writer.string("job");
  writer.i32(from);
  writer.i32(to);
  writer.string(channel);
  writer.raw(nonce);
  return writer.take();
}

void send_frame(const Fd& fd, ByteView payload) {
  Bytes frame;
  append_frame(frame, payload);
  (void)write_some(fd.get(), frame);
}

/// Reads `count` bytes while `bootstrap` welcomes whoever comes; fewer when it closed the connection.
Bytes answer_of(const Fd& fd, std::size_t count, const std::function<void()>& welcome) {
  Bytes bytes(count);
  std::size_t have = 0;
  for (const Deadline deadline = seconds(10); have < count && !deadline.expired();) {
    welcome();
    const Transfer transfer = read_some(fd.get(), std::span(bytes).subspan(have));
    have += transfer.bytes;
    if (transfer.closed) break;
  }
  bytes.resize(have);
  return bytes;
}

// A proof that was overheard, or given for another rank or channel, opens nothing.
TEST_F(BootstrapTest, AProofIsGoodForItsOwnConnectionAlone) {
  SharedWaker waker(WakerReach::kProcess, 0);
  TcpBootstrap a("job", 0, "127.0.0.1", test_secret(), waker);
  const auto welcome = [&] { EXPECT_THROW((void)a.accept(request(1, "c", milliseconds(1))), Timeout); };
  const auto challenge = [&](const Fd& fd, ByteView said) {
    send_frame(fd, said);
    const Bytes answer = answer_of(fd, 12 + sizeof(Nonce) + sizeof(Digest), welcome);
    EXPECT_EQ(answer.size(), 12 + sizeof(Nonce) + sizeof(Digest));
    Nonce nonce{};
    std::ranges::copy(ByteView(answer).subspan(12, nonce.size()), nonce.begin());
    return nonce;
  };
  const auto closed = [&](const Fd& fd) { return answer_of(fd, 1, welcome).empty(); };
  const Nonce nonce = fresh_nonce();
  const Bytes said = hello(1, 0, "other channel", nonce);

  const Fd first = stranger(a.port());
  const Nonce first_nonce = challenge(first, said);
  const Digest overheard =
      Handshake{.caller = nonce, .listener = first_nonce}.proof(test_secret(), Side::kCaller, said);
  const Fd replay = stranger(a.port());
  EXPECT_NE(challenge(replay, said), first_nonce) << "a number is used once";
  send_frame(replay, overheard);
  EXPECT_TRUE(closed(replay)) << "the proof of another connection";

  const Fd reflected = stranger(a.port());
  const Handshake seen{.caller = nonce, .listener = challenge(reflected, said)};
  send_frame(reflected, seen.proof(test_secret(), Side::kListener, said));
  EXPECT_TRUE(closed(reflected)) << "the listener's own proof";

  const Fd renamed = stranger(a.port());
  const Handshake other{.caller = nonce, .listener = challenge(renamed, said)};
  send_frame(renamed, other.proof(test_secret(), Side::kCaller, hello(2, 0, "other channel", nonce)));
  EXPECT_TRUE(closed(renamed)) << "the proof of another rank";

  send_frame(first, overheard);  // on its own connection it is right
  EXPECT_TRUE(a.accept(request(1, "other channel", seconds(10))).valid());
}

TEST_F(BootstrapTest, IdleStrangersInAnyNumberDoNotKeepRanksApart) {
  SharedWaker waker_a(WakerReach::kProcess, 0);
  SharedWaker waker_b(WakerReach::kProcess, 0);
  TcpBootstrap a("job", 0, "127.0.0.1", test_secret(), waker_a);
  TcpBootstrap b("job", 1, "127.0.0.1", test_secret(), waker_b);
  std::vector<Fd> strangers;
  for (std::size_t i = 0; i < 2 * kMaxUnproven; ++i) {
    strangers.push_back(stranger(a.port()));
    if (i % 64 == 63) {
      EXPECT_THROW((void)a.accept(request(2, "c", milliseconds(1))), Timeout);
    }
  }
  std::thread other([&] { (void)b.dial(request(0, "c", seconds(20)), "127.0.0.1", a.port()); });
  EXPECT_TRUE(a.accept(request(1, "c", seconds(20))).valid());
  other.join();
}

TEST_F(BootstrapTest, NobodyAtTheAddressIsALostPeer) {
  SharedWaker waker(WakerReach::kProcess, 0);
  TcpBootstrap bootstrap("job", 1, "127.0.0.1", test_secret(), waker);
  std::uint16_t free_port = 0;
  {
    free_port = TcpBootstrap("job", 0, "127.0.0.1", test_secret(), waker).port();
  }
  const PeerLost error =
      expect_throw<PeerLost>([&] { (void)bootstrap.dial(request(0, "c", seconds(20)), "127.0.0.1", free_port); });
  EXPECT_EQ(error.rank(), 0);
  EXPECT_NE(std::string(error.what()).find("127.0.0.1:" + std::to_string(free_port)), std::string::npos);
}

TEST_F(BootstrapTest, WorksOverIpv6) {
  SharedWaker waker_a(WakerReach::kProcess, 0);
  SharedWaker waker_b(WakerReach::kProcess, 0);
  try {
    TcpBootstrap a("job", 0, "::1", test_secret(), waker_a);
    TcpBootstrap b("job", 1, "::1", test_secret(), waker_b);
    Fd dialled;
    std::thread other([&] { dialled = b.dial(request(0, "c", seconds(20)), "::1", a.port()); });
    EXPECT_TRUE(a.accept(request(1, "c", seconds(20))).valid());
    other.join();
  } catch (const Error& error) {
    GTEST_SKIP() << "this machine has no IPv6: " << error.what();
  }
}

}  // namespace
}  // namespace ringtune::testing_support
