// Errors of the native runtime. Every failure is an exception of this tree; nothing returns a boolean for I/O.
// The binding maps each class to the Python class of the same name in `ringtune.errors`.
#pragma once

#include <stdexcept>
#include <string>

namespace ringtune {

/// Root of everything the runtime throws on purpose.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The rank of a PeerLost where only the message says which.
inline constexpr int kUnknownRank = -1;

/// A peer process died, or left while others still needed it.
class PeerLost : public Error {
 public:
  PeerLost(int rank, const std::string& message) : Error(message), rank_(rank) {}
  [[nodiscard]] int rank() const noexcept { return rank_; }

 private:
  int rank_;
};

/// A deadline passed.
class Timeout : public Error {
 public:
  using Error::Error;
};

/// Ranks disagree on what they asked for (shape, dtype, operation, root ...). The job stays usable.
class Mismatch : public Error {
 public:
  using Error::Error;
};

/// Only some ranks have this gradient. It is to be submitted again by all, with neutral elements where there is none.
class SomeAbsent : public Mismatch {
 public:
  using Mismatch::Mismatch;
};

/// Some ranks have this gradient as a sparse tensor. It is to be submitted again by all, as rows.
class SomeSparse : public Mismatch {
 public:
  using Mismatch::Mismatch;
};

/// The caller passed something that can be refused on this rank alone (Python: ValueError).
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// A peer sent bytes that make no sense: other version, corrupt frame.
class Protocol : public Error {
 public:
  using Error::Error;
};

/// The runtime was shut down while the operation was pending.
class ShutDown : public Error {
 public:
  using Error::Error;
};

/// A trace file cannot be opened or written.
class TraceIo : public Error {
 public:
  using Error::Error;
};

/// A GPU, or what drives it, is missing or has failed.
class DeviceError : public Error {
 public:
  using Error::Error;
};

/// A bug in ringtune: raised only by RINGTUNE_CHECK*.
class InvariantError : public Error {
 public:
  using Error::Error;
};

}  // namespace ringtune
