// Liveness with real processes: a child per rank, killed or told to leave by the test, reports through a pipe.
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/error.h"
#include "base/fd.h"
#include "fabrics.h"
#include "pipe.h"

namespace ringtune::testing_support {
namespace {

constexpr std::int64_t kBoundNs = 2'000'000'000;

enum class Event : std::int32_t { kReady, kLost, kReceiverWoken, kGrandchild, kLeft, kFailed };

/// One line of a child's report; smaller than PIPE_BUF, so that writes do not mix.
struct Report {
  Event event;
  std::int32_t rank;   // who reports
  std::int32_t value;  // the lost rank, or the process of a grandchild
  std::int64_t at_ns;
};

struct Schedule {
  int size = 3;
  TransportChoice transport = TransportChoice::kAuto;
  int forks_grandchild = -1;  // this rank leaves a process behind that inherits everything
  std::int64_t silence_ns = 0;
};

/// The life of a rank in its own process. Never returns.
class Child {
 public:
  Child(const Schedule& schedule, int rank, int orders, int reports)
      : schedule_(schedule), rank_(rank), orders_(orders), reports_(reports) {}

  [[noreturn]] void run() {
    try {
      live();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank_, error.what());
      report(Event::kFailed, 0);
      ::_exit(1);
    }
    ::_exit(0);  // no destructors of the test program that was forked
  }

 private:
  void report(Event event, int value) const {
    const Report line{.event = event, .rank = rank_, .value = value, .at_ns = now_ns()};
    if (::write(reports_, &line, sizeof(line)) != sizeof(line)) ::_exit(2);
  }

  template <typename T>
  T order() const {
    T value{};
    if (::read(orders_, &value, sizeof(value)) != sizeof(value)) ::_exit(3);  // the test is gone
    return value;
  }

  void live() {
    const auto port = order<std::uint16_t>();
    StoreClient store("127.0.0.1", port, test_secret(), seconds(20));
    FabricOptions options;
    options.rank = rank_;
    options.size = schedule_.size;
    options.secret = kTestSecret;
    options.host = "test-host";
    options.transport = schedule_.transport;
    options.silence_ns = schedule_.silence_ns;
    const std::unique_ptr<Fabric> fabric = make_fabric(options, &store, seconds(20));
    fabric->start_monitor([&](int lost, const std::string& reason) {
      report(Event::kLost, lost);
      fabric->abort(reason);
    });
    if (schedule_.forks_grandchild == rank_) leave_grandchild();
    Link& link = fabric->connect(rank_ == 0 ? 1 : 0, "data-" + std::to_string(rank_ == 0 ? 1 : rank_), seconds(20));
    if (rank_ == 0) {
      for (int peer = 2; peer < schedule_.size; ++peer) {
        (void)fabric->connect(peer, "data-" + std::to_string(peer), seconds(20));
      }
    }
    std::thread receiver([&] { receive(link, fabric->waker()); });
    report(Event::kReady, 0);
    (void)order<char>();
    fabric->leave();
    EXPECT_TRUE(fabric->wait_left(seconds(20)));
    fabric->abort("the test is over");
    receiver.join();
    report(Event::kLeft, 0);
  }

  /// Blocks until the monitor's handler has aborted the link.
  void receive(Link& link, Waker& waker) const {
    Bytes byte(1);
    try {
      recv_all(link, waker, byte, Deadline::never());
    } catch (const PeerLost&) {
      report(Event::kReceiverWoken, 0);
    }
  }

  void leave_grandchild() const {
    const pid_t pid = ::fork();
    if (pid == 0) {
      // In a real job this is a data loader's worker: it keeps every descriptor that fork() gave it.
      while (true) ::pause();
    }
    report(Event::kGrandchild, pid);
  }

  const Schedule& schedule_;
  int rank_;
  int orders_;
  int reports_;
};

/// The processes of a job, and the store. Children are forked before the store's thread exists.
class Job {
 public:
  explicit Job(const Schedule& schedule) : schedule_(schedule), orders_(static_cast<std::size_t>(schedule.size)) {
    for (int rank = 0; rank < schedule.size; ++rank) {
      const pid_t pid = ::fork();
      if (pid == 0) {
        Child(schedule_, rank, orders_[static_cast<std::size_t>(rank)].read.get(), reports_.write.get()).run();
      }
      pids_.push_back(pid);
    }
    server_ = std::make_unique<StoreServer>("127.0.0.1", std::uint16_t{0}, test_secret());
    for (int rank = 0; rank < schedule.size; ++rank) order(rank, server_->port());
    for (int ready = 0; ready < schedule.size;) {
      const Report report = next(seconds(30));
      if (report.event == Event::kGrandchild) grandchild_ = report.value;
      if (report.event == Event::kReady) ++ready;
      if (report.event == Event::kFailed) throw std::runtime_error("a rank failed");
    }
  }

  ~Job() {
    for (const pid_t pid : pids_) {
      if (pid > 0) ::kill(pid, SIGKILL);
    }
    if (grandchild_ > 0) ::kill(grandchild_, SIGKILL);
    for (pid_t& pid : pids_) reap(pid);
  }

  template <typename T>
  void order(int rank, T value) {
    ASSERT_EQ(::write(orders_[static_cast<std::size_t>(rank)].write.get(), &value, sizeof(value)),
              static_cast<ssize_t>(sizeof(value)));
  }

  /// Kills a rank and returns when.
  std::int64_t kill(int rank) {
    pid_t& pid = pids_[static_cast<std::size_t>(rank)];
    const std::int64_t at = now_ns();
    ::kill(pid, SIGKILL);
    reap(pid);
    return at;
  }

  /// Sends a rank a signal that it lives through, and returns when.
  std::int64_t signal(int rank, int number) const {
    const std::int64_t at = now_ns();
    ::kill(pids_[static_cast<std::size_t>(rank)], number);
    return at;
  }

  /// Exit code of a rank that ends by itself.
  int finish(int rank) { return reap(pids_[static_cast<std::size_t>(rank)]); }

  Report next(Deadline deadline) {
    pollfd entry{.fd = reports_.read.get(), .events = POLLIN, .revents = 0};
    if (::poll(&entry, 1, static_cast<int>(deadline.remaining_ns() / 1'000'000)) != 1) {
      throw std::runtime_error("no report in time");
    }
    Report report{};
    if (::read(reports_.read.get(), &report, sizeof(report)) != sizeof(report)) throw std::runtime_error("torn report");
    return report;
  }

  [[nodiscard]] bool silent() const {
    pollfd entry{.fd = reports_.read.get(), .events = POLLIN, .revents = 0};
    return ::poll(&entry, 1, 0) == 0;
  }

 private:
  static int reap(pid_t& pid) {
    int status = 0;
    if (pid > 0) {
      while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
      }
    }
    pid = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  Schedule schedule_;
  std::vector<Pipe> orders_;
  Pipe reports_;
  std::vector<pid_t> pids_;
  pid_t grandchild_ = -1;
  std::unique_ptr<StoreServer> server_;
};

using MonitorTest = LeakChecked;

/// Every survivor must report the victim once, and its blocked receiver must return, both within the bound.
void expect_loss_everywhere(Job& job, const Schedule& schedule, int victim, std::int64_t lost_at,
                            std::int64_t bound_ns = kBoundNs) {
  std::vector<int> lost(static_cast<std::size_t>(schedule.size));
  std::vector<int> woken(static_cast<std::size_t>(schedule.size));
  for (int reports = 0; reports < 2 * (schedule.size - 1); ++reports) {
    const Report report = job.next(seconds(10));
    EXPECT_LT(report.at_ns - lost_at, bound_ns) << "rank " << report.rank;
    if (report.event == Event::kLost) {
      EXPECT_EQ(report.value, victim);
      ++lost[static_cast<std::size_t>(report.rank)];
    }
    if (report.event == Event::kReceiverWoken) ++woken[static_cast<std::size_t>(report.rank)];
  }
  for (int rank = 0; rank < schedule.size; ++rank) {
    EXPECT_EQ(lost[static_cast<std::size_t>(rank)], rank == victim ? 0 : 1) << "rank " << rank;
    EXPECT_EQ(woken[static_cast<std::size_t>(rank)], rank == victim ? 0 : 1) << "rank " << rank;
  }
  EXPECT_TRUE(job.silent());
}

TEST_F(MonitorTest, AKilledRankIsReportedEverywhereOverTcp) {
  const Schedule schedule{.transport = TransportChoice::kTcp};
  Job job(schedule);
  expect_loss_everywhere(job, schedule, 1, job.kill(1));
}

TEST_F(MonitorTest, AKilledRankIsReportedEverywhereOverSharedMemory) {
  const Schedule schedule;
  for (const int victim : {0, 1, 2}) {
    Job job(schedule);
    expect_loss_everywhere(job, schedule, victim, job.kill(victim));
  }
}

TEST_F(MonitorTest, AKilledRankIsReportedThoughItsForkedWorkersLiveOn) {
  for (const int victim : {0, 1}) {
    const Schedule schedule{.forks_grandchild = victim};
    Job job(schedule);
    expect_loss_everywhere(job, schedule, victim, job.kill(victim));
  }
}

TEST_F(MonitorTest, AFrozenRankIsReportedEverywhere) {
  for (const TransportChoice transport : {TransportChoice::kTcp, TransportChoice::kAuto}) {
    for (const int victim : {0, 1}) {  // rank 0 watches the others, and they it
      const Schedule schedule{.transport = transport, .silence_ns = 1'000'000'000};
      Job job(schedule);
      expect_loss_everywhere(job, schedule, victim, job.signal(victim, SIGSTOP), schedule.silence_ns + kBoundNs);
    }
  }
}

TEST_F(MonitorTest, AJobThatStoodStillAsAWholeGoesOn) {
  // A busy machine may let a rank wait for a second of its own.
  const Schedule schedule{.silence_ns = 4'000'000'000};
  const std::chrono::nanoseconds longer{schedule.silence_ns + 500'000'000};
  Job job(schedule);
  for (const int rank : {0, 1, 2}) job.signal(rank, SIGSTOP);
  std::this_thread::sleep_for(longer);
  for (const int rank : {0, 1, 2}) job.signal(rank, SIGCONT);
  std::this_thread::sleep_for(longer);
  EXPECT_TRUE(job.silent()) << "nobody was lost, then or later";
}

TEST_F(MonitorTest, RanksThatLeaveAreNotLost) {
  const Schedule schedule;
  Job job(schedule);
  for (const int rank : {2, 1, 0}) {
    job.order(rank, 'l');
    if (rank != 0) {
      EXPECT_EQ(job.finish(rank), 0);
    }
  }
  EXPECT_EQ(job.finish(0), 0);
  int left = 0;
  while (!job.silent()) {
    const Report report = job.next(seconds(1));
    EXPECT_NE(report.event, Event::kLost) << "rank " << report.rank << " reports rank " << report.value;
    EXPECT_NE(report.event, Event::kFailed);
    if (report.event == Event::kLeft) ++left;
  }
  EXPECT_EQ(left, 3);
}

TEST_F(MonitorTest, RankZeroWaitsForTheOthersBeforeItGoes) {
  const Schedule schedule{.size = 2};
  Job job(schedule);
  job.order(0, 'l');  // leaves, then waits inside wait_left()
  job.order(1, 'l');
  EXPECT_EQ(job.finish(1), 0);
  EXPECT_EQ(job.finish(0), 0);
}

TEST(MonitorInproc, ARankThatEndsWithoutLeavingIsReported) {
  Joined world = join("inproc", 3);
  std::vector<int> lost;
  for (const std::size_t rank : {0u, 2u}) {
    world[rank].start_monitor([&](int peer, const std::string&) { lost.push_back(peer); });
  }
  world.fabrics[1].reset();
  EXPECT_EQ(lost, (std::vector<int>{1, 1}));
  world[2].leave();
  EXPECT_TRUE(world[0].wait_left(seconds(1)));
}

}  // namespace
}  // namespace ringtune::testing_support
