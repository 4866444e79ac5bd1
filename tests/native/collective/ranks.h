// Runs a function on every rank of a group, one thread each, over in-process links or over deliberately awkward ones.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "collective/group.h"
#include "transport/fabric.h"

namespace ringtune::testing_support {

/// After it a rank that waits for bytes takes its peer for lost.
constexpr std::int64_t kIdle = 20'000'000'000;

using RankBody = std::function<void(const Group&)>;

/// One thread per rank; the first exception is thrown again here after all have ended.
inline void on_threads(int size, const std::function<void(int)>& body) {
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        failures[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

/// The ring of the runtime over make_inproc_fabrics. Edge e leads from rank e to rank e + 1; edges are opened in order
/// of their number, so that blocking connects cannot wait in a circle.
inline void run_ring(int size, std::size_t ring_bytes, std::int64_t idle_timeout_ns, const RankBody& body) {
  const std::vector<std::unique_ptr<Fabric>> fabrics = make_inproc_fabrics(size, ring_bytes);
  on_threads(size, [&](int rank) {
    Fabric& fabric = *fabrics[static_cast<std::size_t>(rank)];
    Group group{.rank = rank, .size = size, .waker = &fabric.waker(), .idle_timeout_ns = idle_timeout_ns};
    const Deadline deadline = Deadline::after(10'000'000'000);
    for (int edge = 0; edge < size && size > 1; ++edge) {
      const std::string channel = "edge/" + std::to_string(edge);
      if (edge == rank) group.next = &fabric.connect((edge + 1) % size, channel, deadline);
      if ((edge + 1) % size == rank) group.prev = &fabric.connect(edge, channel, deadline);
    }
    body(group);
  });
}

class ConditionWaker : public Waker {
 public:
  std::uint32_t prepare() noexcept override {
    const std::lock_guard lock(mutex_);
    return count_;
  }
  void wait(std::uint32_t ticket, Deadline deadline) override {
    std::unique_lock lock(mutex_);
    while (count_ == ticket && !deadline.expired()) {
      changed_.wait_for(lock, std::chrono::nanoseconds(std::min<std::int64_t>(deadline.remaining_ns(), 1'000'000'000)));
    }
  }
  void notify() noexcept override {
    const std::lock_guard lock(mutex_);
    ++count_;
    changed_.notify_all();
  }
  void watch(int, bool) override {}
  void unwatch(int) noexcept override {}

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint32_t count_ = 0;
};

/// One direction that keeps the contract of Link and not a bit more: takes random prefixes, shows random lengths (64
/// bytes at least when there are as many) from unaligned memory, holds `capacity` bytes.
class StingyChannel {
 public:
  StingyChannel(std::size_t capacity, Waker* sender, Waker* receiver, unsigned seed)
      : capacity_(capacity), sender_(sender), receiver_(receiver), random_(seed) {}

  std::size_t push(std::span<const std::byte> bytes) {
    const std::lock_guard lock(mutex_);
    const std::size_t room = std::min(bytes.size(), capacity_ - held_.size());
    if (room == 0) return 0;
    const std::size_t taken = 1 + random_() % room;
    held_.insert(held_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(taken));
    receiver_->notify();
    return taken;
  }
  std::span<const std::byte> view() {
    const std::lock_guard lock(mutex_);
    std::size_t shown = held_.size();
    if (shown > Link::kPeekMinimum) shown = Link::kPeekMinimum + random_() % (shown - Link::kPeekMinimum + 1);
    shown_.assign(1, std::byte{0xee});  // one byte of offset: unaligned
    shown_.insert(shown_.end(), held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(shown));
    return std::span<const std::byte>(shown_).subspan(1);
  }
  void pop(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    held_.erase(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(bytes));
    sender_->notify();
  }
  std::size_t left() {
    const std::lock_guard lock(mutex_);
    return held_.size();
  }

 private:
  std::mutex mutex_;
  std::deque<std::byte> held_;
  std::vector<std::byte> shown_;
  const std::size_t capacity_;
  Waker* sender_;
  Waker* receiver_;
  std::mt19937 random_;
};

class StingyLink : public Link {
 public:
  StingyLink(int peer, StingyChannel* out, StingyChannel* in) : peer_(peer), out_(out), in_(in) {}
  int peer() const noexcept override { return peer_; }
  std::string_view kind() const noexcept override { return "stingy"; }
  std::size_t try_send(std::span<const std::byte> bytes) override { return out_->push(bytes); }
  std::span<const std::byte> peek() override { return in_->view(); }
  void consume(std::size_t bytes) override { in_->pop(bytes); }
  void abort(const std::string&) noexcept override {}

 private:
  int peer_;
  StingyChannel* out_;
  StingyChannel* in_;
};

/// The same ring over stingy links. Returns the bytes left in all channels at the end (0 = everything was consumed).
inline std::size_t run_stingy_ring(int size, std::size_t capacity, const RankBody& body) {
  const auto count = static_cast<std::size_t>(size);
  std::vector<ConditionWaker> wakers(count);
  std::vector<std::unique_ptr<StingyChannel>> edges;
  for (std::size_t edge = 0; edge < count; ++edge) {
    edges.push_back(std::make_unique<StingyChannel>(capacity, &wakers[edge], &wakers[(edge + 1) % count],
                                                    static_cast<unsigned>(edge)));
  }
  on_threads(size, [&](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    StingyLink next((rank + 1) % size, edges[at].get(), nullptr);
    StingyLink prev((rank + size - 1) % size, nullptr, edges[(at + count - 1) % count].get());
    body(Group{.rank = rank,
               .size = size,
               .next = &next,
               .prev = &prev,
               .waker = &wakers[at],
               .idle_timeout_ns = 20'000'000'000});
  });
  std::size_t left = 0;
  for (const auto& edge : edges) left += edge->left();
  return left;
}

}  // namespace ringtune::testing_support
