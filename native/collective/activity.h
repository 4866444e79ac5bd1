// A collective under way. It is advanced and never waits by itself, so that its thread can do other things meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transport/waker.h"

namespace ringtune {

/// One thread at a time. Borrows the links and the data.
class Activity {
 public:
  virtual ~Activity() = default;
  /// Moves what can be moved now; true when something was. Never blocks. Throws PeerLost, Protocol.
  virtual bool advance() = 0;
  [[nodiscard]] virtual bool done() const = 0;
  /// What it waits for: the message of a Timeout.
  [[nodiscard]] virtual std::string complaint() const = 0;
};
using ActivityPtr = std::unique_ptr<Activity>;

/// One after the other.
class Sequence final : public Activity {
 public:
  explicit Sequence(std::vector<ActivityPtr> parts) : parts_(std::move(parts)) { skip_done(); }
  bool advance() override;
  [[nodiscard]] bool done() const override { return at_ == parts_.size(); }
  [[nodiscard]] std::string complaint() const override { return parts_.at(at_)->complaint(); }

 private:
  void skip_done();
  std::vector<ActivityPtr> parts_;
  std::size_t at_ = 0;
};

/// Several sequences side by side. A part may have to wait for one of another lane; none may wait for itself.
class Lanes final : public Activity {
 public:
  struct Part {
    ActivityPtr activity;
    const Activity* after = nullptr;  // begins when that is done; null: at once
  };
  explicit Lanes(std::vector<std::vector<Part>> lanes);
  bool advance() override;
  [[nodiscard]] bool done() const override;
  [[nodiscard]] std::string complaint() const override;

 private:
  struct Lane {
    std::vector<Part> parts;
    std::size_t at = 0;
    /// What is to be advanced; null: nothing now.
    [[nodiscard]] Activity* current() const;
  };
  /// Passes what is done in any lane, which may let another one begin.
  bool skip_done();
  std::vector<Lane> lanes_;
};

/// Blocks until it is done; throws PeerLost, Protocol, and Timeout when nothing moved for `idle_timeout_ns` (0: never).
void finish(Activity& activity, Waker& waker, std::int64_t idle_timeout_ns);

}  // namespace ringtune
