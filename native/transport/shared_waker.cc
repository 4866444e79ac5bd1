#include "transport/shared_waker.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <limits>
#include <new>
#include <span>
#include <string>

#include "base/error.h"
#include "base/futex.h"
#include "base/sleep.h"
#include "transport/pause.h"

#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441  // the same number on every architecture
#endif

namespace ringtune {
namespace {

constexpr std::uint64_t kWakerMagic = 0x72696e6762656c6cull;  // "ringbell"
constexpr std::int64_t kSpinNs = 40'000;
// When to spin: a spin that ends the wait earns credit, one that is followed by a sleep costs more. Out of credit,
// waits block at once; after kSpinRest waits that were short all the same, one more try. Long waits never bring it
// back.
constexpr int kSpinCreditMax = 16;
constexpr int kSpinCost = 4;
constexpr int kSpinRest = 32;
constexpr std::int64_t kShortWaitFactor = 2;  // of spin_ns

struct WakerPage {
  std::uint64_t magic = kWakerMagic;
  std::uint64_t token = 0;
  WakerWord word;
};

Mapping map_private_page() {
  void* page = ::mmap(nullptr, page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) throw_errno("cannot map the memory of a waker");
  return Mapping(page, page_bytes());
}

int whole_milliseconds(Deadline deadline) noexcept {
  if (deadline.is_never()) return -1;
  const std::int64_t ms = (deadline.remaining_ns() + 999'999) / 1'000'000;
  return static_cast<int>(std::min<std::int64_t>(ms, std::numeric_limits<int>::max()));
}

/// epoll with a deadline in nanoseconds; kernels before 5.11 round up to milliseconds. Returns the number of events.
int wait_events(int epoll, std::span<epoll_event> events, Deadline deadline) {
  static std::atomic<bool> fine_grained{true};  // relaxed: a hint that only ever turns false
  const auto room = static_cast<int>(events.size());
  if (fine_grained.load(std::memory_order_relaxed)) {
    timespec timeout{};
    timeout.tv_sec = static_cast<time_t>(deadline.remaining_ns() / 1'000'000'000);
    timeout.tv_nsec = static_cast<long>(deadline.remaining_ns() % 1'000'000'000);
    const long count =
        ::syscall(SYS_epoll_pwait2, epoll, events.data(), room, deadline.is_never() ? nullptr : &timeout, nullptr, 0);
    if (count >= 0) return static_cast<int>(count);
    if (errno == EINTR) return 0;
    if (errno != ENOSYS && errno != EPERM) throw_errno("epoll_pwait2");
    fine_grained.store(false, std::memory_order_relaxed);
  }
  const int count = ::epoll_wait(epoll, events.data(), room, whole_milliseconds(deadline));
  if (count < 0 && errno != EINTR) throw_errno("epoll_wait");
  return std::max(count, 0);
}

}  // namespace

std::int64_t default_spin_ns(std::span<const CoreSet> ranks) noexcept { return run_at_once(ranks) ? kSpinNs : 0; }

void WakerWord::ring(int doorbell) noexcept {
  // Release: the notifier's writes (data, head and tail of a ring) are visible to a thread that sees the new counter.
  // No acquire on success: the notifier reads nothing that a sleeper published.
  std::uint32_t old = value.load(std::memory_order_relaxed);
  while (!value.compare_exchange_weak(old, (old & ~kSleepers) + kTick, std::memory_order_release,
                                      std::memory_order_relaxed)) {
  }
  // Shared scope: the word may lie in another process's view of the page.
  if ((old & kFutexSleeper) != 0) futex_wake(value, kFutexWakeAll, FutexScope::kShared);
  if ((old & kSocketSleeper) != 0) {
    // A full pipe already wakes the sleeper; a vanished one needs no waking. So the result does not matter.
    const char byte = 0;
    while (::write(doorbell, &byte, 1) < 0 && errno == EINTR) {
    }
  }
}

SharedWaker::SharedWaker(WakerReach reach, std::int64_t spin_ns) : spin_ns_(spin_ns), spin_credit_(kSpinCreditMax) {
  if (reach == WakerReach::kHost) {
    memory_fd_ = create_segment("ringtune-waker", page_bytes());
    memory_ = map_segment(memory_fd_.get(), 0, page_bytes());
    open_doorbell();  // the peers open it when they meet this rank
  } else {
    memory_ = map_private_page();
  }
  auto* page = new (memory_.data()) WakerPage;
  page->token = random_token();
  word_ = &page->word;
}

void SharedWaker::open_doorbell() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) throw_errno("cannot create the doorbell pipe of a waker");
  doorbell_read_.reset(ends[0]);
  doorbell_write_.reset(ends[1]);
}

WakerAddress SharedWaker::address() const noexcept {
  const auto* page = reinterpret_cast<const WakerPage*>(memory_.data());
  return {.pid = ::getpid(), .memory_fd = memory_fd_.get(), .doorbell_fd = doorbell_write_.get(), .token = page->token};
}

// acquire: pairs with the release in ring(): a waiter that takes a ticket sees what was published before that count.
std::uint32_t SharedWaker::prepare() noexcept {
  return word_->value.load(std::memory_order_acquire) & ~WakerWord::kSleepers;
}

bool SharedWaker::changed(std::uint32_t ticket) const noexcept {
  return (word_->value.load(std::memory_order_acquire) & ~WakerWord::kSleepers) != ticket;
}

void SharedWaker::notify() noexcept { word_->ring(doorbell_write_.get()); }

bool SharedWaker::spin(std::uint32_t ticket, std::int64_t until_ns) const noexcept {
  do {
    for (int i = 0; i < 32; ++i) {
      if (changed(ticket)) return true;
      pause_cpu();
    }
  } while (now_ns() < until_ns);
  return false;
}

void SharedWaker::wait(std::uint32_t ticket, Deadline deadline) {
  if (changed(ticket) || deadline.expired()) return;
  const std::int64_t begin_ns = now_ns();
  const bool try_spin = spin_ns_ > 0 && spin_credit_.load(std::memory_order_relaxed) > 0;
  if (try_spin && spin(ticket, std::min(begin_ns + spin_ns_, deadline.when_ns()))) {
    const int credit = spin_credit_.load(std::memory_order_relaxed);
    if (credit < kSpinCreditMax) spin_credit_.store(credit + 1, std::memory_order_relaxed);
    return;
  }
  if (watched_.load(std::memory_order_acquire) > 0) {
    sleep_on_sockets(ticket, deadline);
  } else {
    sleep_on_word(ticket, deadline);
  }
  if (spin_ns_ > 0) learn_from_sleep(try_spin, now_ns() - begin_ns);
}

void SharedWaker::learn_from_sleep(bool spun, std::int64_t waited_ns) noexcept {
  int credit = spin_credit_.load(std::memory_order_relaxed);
  if (spun) {
    credit -= kSpinCost;
    if (credit <= 0) credit = -kSpinRest;
  } else if (waited_ns <= kShortWaitFactor * spin_ns_) {
    ++credit;
  }
  spin_credit_.store(credit, std::memory_order_relaxed);
}

bool SharedWaker::announce_sleep(std::uint32_t ticket, std::uint32_t bit, std::uint32_t& value) noexcept {
  value = word_->value.load(std::memory_order_acquire);
  while ((value & ~WakerWord::kSleepers) == ticket) {
    // acquire on failure: a new count comes with new work. On success the order does not matter (the sleeper publishes
    // nothing but the bit itself, and only that the counter still equals the ticket counts).
    if (word_->value.compare_exchange_weak(value, value | bit, std::memory_order_acquire)) {
      value |= bit;
      return true;
    }
  }
  return false;
}

void SharedWaker::sleep_on_word(std::uint32_t ticket, Deadline deadline) {
  std::uint32_t value = 0;
  while (announce_sleep(ticket, WakerWord::kFutexSleeper, value)) {
    if (!futex_wait(word_->value, value, deadline, FutexScope::kShared)) return;
  }
}

void SharedWaker::sleep_on_sockets(std::uint32_t ticket, Deadline deadline) {
  std::unique_lock leader(polling_, std::try_to_lock);
  if (!leader) return sleep_on_word(ticket, deadline);  // the leader wakes this thread when it has seen something
  std::uint32_t value = 0;
  if (announce_sleep(ticket, WakerWord::kSocketSleeper, value)) {
    std::array<epoll_event, 32> events;
    about_to_sleep();
    const int count = wait_events(epoll_.get(), events, deadline);
    for (int i = 0; i < count; ++i) {
      if (events[static_cast<std::size_t>(i)].data.fd == doorbell_read_.get()) drain_doorbell();
    }
    // Nobody sleeps in epoll now. relaxed: the bit alone is meant, and only the leader sets it.
    word_->value.fetch_and(~WakerWord::kSocketSleeper, std::memory_order_relaxed);
  }
  // Unlock first, then advance the counter: threads asleep on the word return, look for work that came by socket, and
  // one of them leads next. A thread that missed the lock just before has an older ticket and cannot fall asleep.
  leader.unlock();
  notify();
}

void SharedWaker::drain_doorbell() noexcept {
  std::array<char, 256> bytes;
  while (::read(doorbell_read_.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size())) {
  }
}

void SharedWaker::open_epoll() {
  Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) throw_errno("cannot create an epoll set");
  if (!doorbell_read_) open_doorbell();
  epoll_event event{};
  event.events = EPOLLIN;  // level-triggered: it is drained by the leader alone
  event.data.fd = doorbell_read_.get();
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, doorbell_read_.get(), &event) != 0) throw_errno("epoll_ctl (doorbell)");
  epoll_ = std::move(epoll);
}

void SharedWaker::watch(int fd, bool want_write) {
  {
    const std::lock_guard lock(setup_);
    if (!epoll_) open_epoll();
  }
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP | EPOLLET | (want_write ? EPOLLOUT : 0u);
  event.data.fd = fd;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) == 0) return;
  if (errno != ENOENT || ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    throw_errno("cannot watch socket " + std::to_string(fd));
  }
  // release: a waiter that sees the count also sees epoll_ and the doorbell. Sleepers on the word must change over.
  if (watched_.fetch_add(1, std::memory_order_release) == 0) notify();
}

void SharedWaker::unwatch(int fd) noexcept {
  if (epoll_ && ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr) == 0) {
    watched_.fetch_sub(1, std::memory_order_relaxed);
  }
}

PeerBell::PeerBell(const WakerAddress& address) {
  // Read-write although only written: with a reader of its own the pipe never raises SIGPIPE after the peer died.
  doorbell_ = open_peer_fd(address.pid, address.doorbell_fd, O_RDWR | O_NONBLOCK);
  const Fd memory = open_peer_fd(address.pid, address.memory_fd, O_RDWR);
  const std::string process = std::to_string(address.pid);
  if (segment_bytes(memory.get()) < sizeof(WakerPage)) throw Error("the waker of process " + process + " is gone");
  memory_ = map_segment(memory.get(), 0, page_bytes());
  auto* page = reinterpret_cast<WakerPage*>(memory_.data());
  if (page->magic != kWakerMagic || page->token != address.token) {
    throw Error("the waker of process " + process + " is not the expected one");
  }
  word_ = &page->word;
}

}  // namespace ringtune
