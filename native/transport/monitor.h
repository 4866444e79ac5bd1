// Liveness: a thread that only blocks in poll() on the sockets of the liveness hub. A socket that ends without a
// goodbye means that its process died; rank 0 tells the others. A process that is there but frozen (stopped, or on a
// host that hangs) is noticed by its silence: rank 0 and every other rank send each other signs of life.
#pragma once

#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "transport/fabric.h"
#include "transport/liveness_hub.h"
#include "transport/thread.h"
#include "transport/waker.h"
#include "transport/wire.h"

namespace ringtune {

/// Owns the sockets and the thread. leave() and wait_left() from any thread. The handler runs on the monitor's thread,
/// at most once per rank, and never after the destructor returned.
class Monitor {
 public:
  /// `waker` (borrowed) is rung when a rank has left or is lost. A rank that gives no sign of life for `silence_ns` is
  /// lost; 0 = it may be silent for ever. Throws Error when there is no thread or descriptor left.
  Monitor(int rank, int size, std::vector<LivenessSocket> sockets, std::int64_t silence_ns, Waker& waker,
          PeerLostHandler handler);
  ~Monitor();  // without leave() the others will report this rank as lost
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  /// Says goodbye; reports nothing from now on. Idempotent, never blocks.
  void leave() noexcept;
  /// Says that this rank is lost to the others, and why; reports nothing from now on. Idempotent, never blocks.
  void fail(const std::string& reason) noexcept;
  /// True when no other rank is present any more (rank 0) or at once (other ranks).
  [[nodiscard]] bool alone() const;

 private:
  struct Spoke {
    explicit Spoke(LivenessSocket socket);
    LivenessPeer peer;
    ParentOnlyFd fd;
    FrameAssembler in;
    bool present = true;               // neither left nor lost
    std::int64_t heard_ns = now_ns();  // its last sign of life; used by the thread alone
  };

  void run() noexcept;
  void watch_until_stop();
  void beat();
  void read_from(Spoke& spoke);
  void handle(Spoke& spoke, ByteView frame);
  void gone(Spoke& spoke);
  void lose(Spoke& spoke, const std::string& reason);
  void report(int rank, const std::string& reason);
  void send_all(ByteView payload, int except) noexcept;

  const int rank_;
  const std::int64_t silence_ns_;
  std::int64_t next_beat_ns_ = 0;  // used by the thread alone
  Waker& waker_;
  PeerLostHandler handler_;
  StopSignal stop_;
  mutable std::mutex mutex_;  // guards what follows; never held while the handler runs
  std::vector<Spoke> spokes_;
  std::vector<bool> reported_;
  bool left_ = false;
  std::thread thread_;
};

}  // namespace ringtune
