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
#include "transport/inquiry.h"
#include "transport/liveness_hub.h"
#include "transport/thread.h"
#include "transport/waker.h"
#include "transport/wire.h"

namespace ringtune {

/// Owns the sockets and the thread. leave(), ask() and reply() from any thread. The handlers run on the monitor's
/// thread, that of a loss at most once per rank, and never after the destructor returned.
class Monitor {
 public:
  /// `waker` (borrowed) is rung when a rank has left or is lost. A rank that gives no sign of life for `silence_ns` is
  /// lost; 0 = it may be silent for ever. Throws Error when there is no thread or descriptor left.
  Monitor(int rank, int size, std::vector<LivenessSocket> sockets, std::int64_t silence_ns, Waker& waker,
          PeerLostHandler handler, InquiryHandler inquiry = {});
  ~Monitor();  // without leave() the others will report this rank as lost
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  /// Says goodbye; reports nothing from now on. Idempotent, never blocks.
  void leave() noexcept;
  /// Says that this rank is lost to the others, and why; reports nothing from now on. Idempotent, never blocks.
  void fail(const std::string& reason) noexcept;
  /// Asks the ranks that this one has a connection to: rank 0 all others, they rank 0. Blocks until all have answered,
  /// left or are lost, or the deadline. A question holds at most kMostInquiryBytes.
  [[nodiscard]] Answers ask(ByteView question, Deadline deadline);
  /// Questions that wait for answers do so no longer.
  void end_inquiries() noexcept { inquiries_.stop(); }
  /// Answers a question of a rank that has one to this rank, in as many bytes. Never blocks.
  void reply(int to, std::uint32_t number, ByteView answer) noexcept;
  static constexpr std::size_t kMostInquiryBytes = 16 << 10;
  /// True when no other rank is present any more (rank 0) or at once (other ranks).
  [[nodiscard]] bool alone() const;

 private:
  struct Spoke {
    explicit Spoke(LivenessSocket socket);
    LivenessPeer peer;
    ParentOnlyFd fd;
    FrameAssembler in;
    SendQueue out;                     // what the socket has not taken
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
  void handle_inquiry(const Spoke& spoke, bool question, ByteReader& reader);
  void send_all(ByteView payload, int except) noexcept;
  void send(Spoke& spoke, ByteView payload);
  void flush(Spoke& spoke) noexcept;

  const int rank_;
  const std::int64_t silence_ns_;
  std::int64_t next_beat_ns_ = now_ns();  // used by the thread alone
  Waker& waker_;
  PeerLostHandler handler_;
  InquiryHandler inquiry_;
  Inquiries inquiries_;
  StopSignal stop_;
  StopSignal unsent_;         // another thread has left bytes that are to be sent when a socket takes them
  mutable std::mutex mutex_;  // guards what follows; never held while the handler runs
  std::vector<Spoke> spokes_;
  std::vector<bool> reported_;
  bool left_ = false;
  std::thread thread_;
};

}  // namespace ringtune
