// What every fabric keeps: its open links by peer and channel, and the reason of an abort.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "transport/abortable.h"
#include "transport/link.h"

namespace ringtune {

/// A reason that is given once and then stays. give() from any thread; check() from any thread, cheap.
class AbortState {
 public:
  /// Only the first reason counts. Never throws.
  void give(const std::string& reason) noexcept;
  [[nodiscard]] bool given() const noexcept { return given_.load(std::memory_order_acquire); }
  /// Throws PeerLost(peer, reason) when a reason was given.
  void check(int peer) const {
    if (given()) [[unlikely]]
      raise(peer);
  }

 private:
  [[noreturn]] void raise(int peer) const;

  std::mutex mutex_;
  std::string reason_;
  std::atomic<bool> given_{false};
};

/// For the end of a stream that is cut within an element: a reader that gets the same few bytes again and again can
/// never go on, and no further event will wake it. One per link, used by the link's thread.
class CutEnd {
 public:
  /// Call when the stream has ended and `rest` unconsumed bytes (less than Link::kPeekMinimum) are shown. True when the
  /// reader had its chances; until then the caller rings its own waker so that the reader looks once more.
  [[nodiscard]] bool shown(std::size_t rest) noexcept {
    looks_ = rest == rest_ ? looks_ + 1 : 1;
    rest_ = rest;
    return looks_ > kLooks;
  }

 private:
  static constexpr int kLooks = 8;
  std::size_t rest_ = 0;
  int looks_ = 0;
};

/// Owns the links of one fabric. Any thread; links live until clear().
class LinkTable {
 public:
  /// Throws InvalidArgument when this channel to the peer is open, PeerLost after abort().
  void check_free(int peer, const std::string& channel) const;
  /// Takes the link; it is aborted at once when abort() came first.
  Link& add(const std::string& channel, std::unique_ptr<Link> link);
  /// Is aborted together with the links as long as it lives; at once when abort() came first.
  void add_abortable(const std::shared_ptr<Abortable>& abortable);
  /// Closes those whose channel begins with `prefix`.
  void close(const std::string& prefix) noexcept;
  void abort(const std::string& reason) noexcept;
  [[nodiscard]] const AbortState& aborted() const noexcept { return aborted_; }
  void clear() noexcept;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<int, std::string>, std::unique_ptr<Link>> links_;
  std::vector<std::weak_ptr<Abortable>> abortables_;
  AbortState aborted_;
  std::string reason_;
};

}  // namespace ringtune
