// The shared-memory group between real processes: sums over fork()ed ranks, and the death of one in the middle of its
// rounds.
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <set>

#include "base/clock.h"
#include "base/error.h"
#include "collective/communicator.h"
#include "collective/shared_allreduce.h"
#include "collective/shm_bootstrap.h"
#include "transport/fabric.h"
#include "transport/store.h"

namespace ringtune {
namespace {

constexpr int kMembers = 3;
constexpr std::int64_t kBoundNs = 2'000'000'000;
constexpr int kSawTheLoss = 42;

std::set<std::string> shared_memory_names() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) names.insert(entry.path().string());
  return names;
}

/// Reduces until a peer is lost. Tells through `running` that the first round is over. Never returns.
[[noreturn]] void live(int rank, std::uint16_t port, int running) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // an aborted test leaves nobody behind
  const auto deadline = [] { return Deadline::after(20'000'000'000); };
  try {
    StoreClient store("127.0.0.1", port, Secret("test"), deadline());
    FabricOptions options;
    options.rank = rank;
    options.size = kMembers;
    options.secret = "test";
    options.host = "test-host";
    const std::unique_ptr<Fabric> fabric = make_fabric(options, &store, deadline());
    fabric->start_monitor([&](int, const std::string& reason) { fabric->abort(reason); });
    const std::vector<int> ranks = all_ranks(kMembers);
    const Group ring = connect_ring(*fabric, ranks, "test", deadline());
    const std::shared_ptr<ShmGroup> shm_group = connect_shm_group(*fabric, ring, ranks, default_shm_group());
    if (!shm_group) ::_exit(2);
    std::vector<std::int32_t> data(100'000);
    auto* bytes = reinterpret_cast<std::byte*>(data.data());
    const Fragment fragment{bytes, bytes, data.size()};
    for (std::uint64_t round = 0;; ++round) {
      data.assign(data.size(), rank + 1);
      if (!shared_allreduce(*shm_group, {&fragment, 1}, {round, DType::kInt32, ReduceOp::kSum})) ::_exit(3);
      if (data != std::vector<std::int32_t>(data.size(), 6)) ::_exit(4);
      if (round == 0 && ::write(running, "x", 1) != 1) ::_exit(5);
    }
  } catch (const PeerLost&) {
    ::_exit(kSawTheLoss);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    ::_exit(6);
  }
}

class SharedAllreduceProcesses : public ::testing::TestWithParam<int> {};
TEST_P(SharedAllreduceProcesses, SurvivorsOfAKillSeeTheLossAndNothingIsLeft) {
  const std::set<std::string> before = shared_memory_names();
  int ports[2];
  int running[2];
  ASSERT_EQ(::pipe(ports), 0);
  ASSERT_EQ(::pipe(running), 0);
  std::vector<pid_t> children;
  for (int rank = 0; rank < kMembers; ++rank) {
    const pid_t pid = ::fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      std::uint16_t port = 0;
      if (::read(ports[0], &port, sizeof port) != sizeof port) ::_exit(7);
      live(rank, port, running[1]);
    }
    children.push_back(pid);
  }
  ::close(running[1]);
  StoreServer server("127.0.0.1", 0, Secret("test"));  // after fork(): it has threads
  const std::uint16_t port = server.port();
  for (int rank = 0; rank < kMembers; ++rank) ASSERT_EQ(::write(ports[1], &port, sizeof port), ssize_t{sizeof port});
  char byte = 0;
  for (int rank = 0; rank < kMembers; ++rank) ASSERT_EQ(::read(running[0], &byte, 1), 1) << "a rank ended early";

  const int victim = GetParam();
  const std::int64_t killed_ns = now_ns();
  ASSERT_EQ(::kill(children[static_cast<std::size_t>(victim)], SIGKILL), 0);
  for (int rank = 0; rank < kMembers; ++rank) {
    int status = 0;
    ASSERT_EQ(::waitpid(children[static_cast<std::size_t>(rank)], &status, 0),
              children[static_cast<std::size_t>(rank)]);
    if (rank != victim) {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == kSawTheLoss) << "rank " << rank << ": " << status;
    }
  }
  EXPECT_LT(now_ns() - killed_ns, kBoundNs);
  for (const int fd : {ports[0], ports[1], running[0]}) ::close(fd);
  EXPECT_EQ(shared_memory_names(), before);
}
INSTANTIATE_TEST_SUITE_P(Victims, SharedAllreduceProcesses, ::testing::Values(0, 1));

}  // namespace
}  // namespace ringtune
