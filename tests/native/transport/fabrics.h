// Helpers of the transport tests: joined fabrics of every kind in one process, and a check that nothing leaks.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "transport/fabric.h"
#include "transport/io.h"
#include "transport/store.h"

namespace ringtune::testing_support {

inline constexpr const char* kTestSecret = "the secret of the tests";
inline Secret test_secret() { return Secret(kTestSecret); }

inline Deadline seconds(std::int64_t count) { return Deadline::after(count * 1'000'000'000); }
inline Deadline milliseconds(std::int64_t count) { return Deadline::after(count * 1'000'000); }

/// Fabrics of one job whose ranks are threads of the test. Members are destroyed in reverse order: fabrics first.
struct Joined {
  std::unique_ptr<StoreServer> server;
  std::vector<std::unique_ptr<StoreClient>> clients;
  std::vector<std::unique_ptr<Fabric>> fabrics;

  Fabric& operator[](std::size_t rank) { return *fabrics[rank]; }
};

/// Fabrics of processes; `choose` sets what is special about each rank.
inline Joined join_processes(int size, const std::function<void(FabricOptions&)>& choose) {
  Joined joined;
  joined.server = std::make_unique<StoreServer>("127.0.0.1", 0, test_secret());
  joined.clients.resize(static_cast<std::size_t>(size));
  joined.fabrics.resize(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto index = static_cast<std::size_t>(rank);
      joined.clients[index] =
          std::make_unique<StoreClient>("127.0.0.1", joined.server->port(), test_secret(), seconds(20));
      FabricOptions options;
      options.rank = rank;
      options.size = size;
      options.secret = kTestSecret;
      options.host = "test-host";
      choose(options);
      joined.fabrics[index] = make_fabric(options, joined.clients[index].get(), seconds(20));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return joined;
}

/// `kind`: "inproc", "shm", "tcp" or "tcp4" (four sockets per peer).
inline Joined join(const std::string& kind, int size, std::size_t ring_bytes = 1 << 20) {
  if (kind == "inproc") {
    Joined joined;
    joined.fabrics = make_inproc_fabrics(size, ring_bytes);
    return joined;
  }
  return join_processes(size, [&](FabricOptions& options) {
    options.transport = kind == "shm" ? TransportChoice::kShm : TransportChoice::kTcp;
    options.shm_ring_bytes = ring_bytes;
    options.tcp_buffer_bytes = ring_bytes;
    options.sockets_per_peer = kind == "tcp4" ? 4 : 1;
  });
}

/// Ranks on hosts of these names: shared memory within a host, two sockets per peer between hosts.
inline Joined join_hosts(const std::vector<std::string>& hosts) {
  return join_processes(static_cast<int>(hosts.size()), [&](FabricOptions& options) {
    options.host = hosts[static_cast<std::size_t>(options.rank)];
    options.sockets_per_peer = 2;
  });
}

/// Both ends of a channel between ranks 0 and 1.
struct Pair {
  Link* a = nullptr;  // at rank 0
  Link* b = nullptr;  // at rank 1
};

inline Pair connect_pair(Joined& joined, const std::string& channel = "data") {
  Pair pair;
  std::thread other([&] { pair.b = &joined[1].connect(0, channel, seconds(20)); });
  pair.a = &joined[0].connect(1, channel, seconds(20));
  other.join();
  return pair;
}

/// What a process could leave behind: its descriptors, mapped segments and files in /dev/shm.
struct Footprint {
  std::size_t descriptors = 0;
  std::size_t segments = 0;
  std::set<std::string> shm_files;

  static Footprint now() {
    Footprint footprint;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      ++footprint.descriptors;
    }
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      if (line.find("memfd:ringtune") != std::string::npos) ++footprint.segments;
    }
    if (std::filesystem::exists("/dev/shm")) {
      for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
        footprint.shm_files.insert(entry.path().string());
      }
    }
    return footprint;
  }
};

/// Fails a test that leaves a descriptor, a mapping or a file in /dev/shm behind.
class LeakChecked : public ::testing::Test {
 protected:
  void SetUp() override { before_ = Footprint::now(); }
  void TearDown() override {
    const Footprint after = Footprint::now();
    EXPECT_EQ(before_.descriptors, after.descriptors);
    EXPECT_EQ(before_.segments, after.segments);
    for (const std::string& file : after.shm_files) {
      // Other programs of the machine may use /dev/shm at the same time; ours would carry our name.
      const bool ours = !before_.shm_files.contains(file) && file.find("ringtune") != std::string::npos;
      EXPECT_FALSE(ours) << file;
    }
  }

 private:
  Footprint before_;
};

/// Runs `body` and returns what it threw of type `E`; fails when it threw nothing or something else.
template <typename E, typename Body>
E expect_throw(Body body) {
  try {
    body();
  } catch (const E& error) {
    return error;
  }
  throw std::logic_error("no exception was thrown");
}

/// CPU time of the calling thread.
inline std::int64_t thread_cpu_ns() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
}

}  // namespace ringtune::testing_support
