// At full detail: what a thread does inside a batch. Costs a look at one word of the thread when it is off.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "trace/tracer.h"

namespace ringtune {

/// While it lives, the pieces of the calling thread's work are recorded as parts of one batch. Borrows the tracer.
class PieceLog {
 public:
  /// `batch`: its numbers go into every span.
  PieceLog(Tracer& tracer, const Span& batch) noexcept;
  ~PieceLog();
  PieceLog(const PieceLog&) = delete;
  PieceLog& operator=(const PieceLog&) = delete;

  /// The calling thread's; null when nothing is to be recorded.
  [[nodiscard]] static PieceLog* current() noexcept { return t_current; }
  void add(Piece piece, std::int64_t begin_ns, std::size_t bytes) noexcept {
    Span span = batch_;
    span.stage = Stage::kPiece;
    span.kind = static_cast<std::uint8_t>(piece);
    put(span, begin_ns, bytes);
  }
  /// A wait that began at `begin_ns` is over. Short ones are none.
  void waited(std::int64_t begin_ns, int rank) noexcept {
    Span span = batch_;
    span.stage = Stage::kAwait;
    span.peer = rank;
    if (now_ns() - begin_ns >= kShortestWaitNs) put(span, begin_ns, 0);
  }

  static constexpr std::int64_t kShortestWaitNs = 500;

 private:
  void put(Span& span, std::int64_t begin_ns, std::size_t bytes) noexcept {
    span.begin_ns = begin_ns;
    span.end_ns = now_ns();
    span.bytes = bytes;
    tracer_.record(span);
  }

  Tracer& tracer_;
  Span batch_;
  static inline thread_local constinit PieceLog* t_current = nullptr;
};

/// Records its own lifetime as a piece.
class PieceTimer {
 public:
  PieceTimer(Piece piece, std::size_t bytes) noexcept : log_(PieceLog::current()), piece_(piece), bytes_(bytes) {
    if (log_ != nullptr) [[unlikely]]
      begin_ns_ = now_ns();
  }
  ~PieceTimer() {
    if (log_ != nullptr) [[unlikely]]
      log_->add(piece_, begin_ns_, bytes_);
  }
  PieceTimer(const PieceTimer&) = delete;
  PieceTimer& operator=(const PieceTimer&) = delete;

 private:
  PieceLog* log_;
  Piece piece_;
  std::size_t bytes_;
  std::int64_t begin_ns_ = 0;
};

/// Records its own lifetime as a wait for a rank; -1: for any rank.
class WaitTimer {
 public:
  explicit WaitTimer(int rank = -1) noexcept : log_(PieceLog::current()), rank_(rank) {
    if (log_ != nullptr) [[unlikely]]
      begin_ns_ = now_ns();
  }
  ~WaitTimer() {
    if (log_ != nullptr) [[unlikely]]
      log_->waited(begin_ns_, rank_);
  }
  WaitTimer(const WaitTimer&) = delete;
  WaitTimer& operator=(const WaitTimer&) = delete;

 private:
  PieceLog* log_;
  int rank_;
  std::int64_t begin_ns_ = 0;
};

}  // namespace ringtune
