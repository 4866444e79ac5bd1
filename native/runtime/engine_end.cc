// How the engine comes to its end: a peer or a device is lost, an error, or this rank leaves.
#include <chrono>

#include "base/error.h"
#include "base/log.h"
#include "runtime/engine.h"
#include "runtime/gpu/data_paths.h"

namespace ringtune {
namespace {

constexpr std::int64_t kVerdictNs = 500'000'000;  // how long the loss of a link waits for what liveness says of it

bool is_peer_lost(const std::exception_ptr& error) noexcept {
  try {
    std::rethrow_exception(error);
  } catch (const PeerLost&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

void Engine::peer_lost(int rank, const std::string& reason) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!lost_) {
      lost_ = std::make_exception_ptr(PeerLost(rank, reason));
      lost_known_ = true;  // liveness tells everybody
    }
  }
  lost_said_.notify_all();
  fabric_.abort(reason);  // wakes the cycle thread wherever it waits; it throws from the link and ends in stop()
  // What waits for the peer in streams does so for ever, and nobody may come by stop() soon.
  if (options_.data_paths != nullptr) options_.data_paths->abort(std::make_exception_ptr(PeerLost(rank, reason)));
}

void Engine::device_failed(const std::exception_ptr& error) noexcept {
  std::string reason = "a GPU has failed";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& caught) {
    reason = caught.what();
  }
  {
    const std::lock_guard lock(mutex_);
    if (!lost_) lost_ = error;
  }
  lost_said_.notify_all();
  fabric_.abort(reason);  // as above
}

void Engine::leave(Deadline deadline, const std::string& how, bool failed) {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    departure_ = {.who = own_name(), .how = how, .failed = failed};
  }
  leave_deadline_ns_.store(deadline.when_ns(), std::memory_order_relaxed);
  leave_requested_.store(true, std::memory_order_release);
  nudge();
  thread_.join();
  stall_reporter_->stop();
}

/// "rank 1 on host b"
std::string Engine::own_name() const {
  const int rank = fabric_.rank();
  return "rank " + std::to_string(rank) + " on host " + fabric_.hosts().at(static_cast<std::size_t>(rank));
}

bool Engine::finished() {
  if (!leaving_) return false;
  if (negotiator_.free_to_go() && executor_->drained() && (!control_ || control_->flush())) return true;
  return now_ns() >= leave_deadline_ns_.load(std::memory_order_relaxed);
}

void Engine::stop(std::exception_ptr error) noexcept {
  bool known = decided_;  // to the peers
  {
    std::unique_lock lock(mutex_);
    if (is_peer_lost(error)) {
      // A link that broke may belong to a rank that fell with another one: liveness knows who was the first, and why.
      lost_said_.wait_for(lock, std::chrono::nanoseconds(kVerdictNs), [this] { return lost_ != nullptr; });
    }
    if (lost_) {
      error = lost_;
      known = lost_known_;
    }
  }
  std::string reason = "the runtime of a peer has ended";
  std::string told;  // to the others
  bool clean = false;
  try {
    std::rethrow_exception(error);
  } catch (const ShutDown&) {
    clean = true;
  } catch (const PeerLost& caught) {
    // Perhaps only a link broke. The other ranks would not notice that by themselves, and all would wait for this one.
    reason = caught.what();
    told = reason + ", reports " + own_name();
  } catch (const Timeout& caught) {
    reason = caught.what();
    told = reason + ", reports " + own_name();
  } catch (const std::exception& caught) {
    reason = caught.what();
    told = own_name() + " has ended by an error of its own: " + reason;
  }
  if (!clean) {
    log(LogLevel::kDebug, "the runtime stops: ", reason);
    if (!known) fabric_.fail(told);
    fabric_.abort(reason);
    if (options_.data_paths != nullptr) options_.data_paths->abort(error);
  }
  tickets_.close(error);
  ended_ = true;
}

}  // namespace ringtune
