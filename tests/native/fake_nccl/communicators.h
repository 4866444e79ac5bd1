// What the fake NCCL knows. Guarded by the lock of the fake driver's world.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fake_cuda/world.h"

namespace fake_nccl {

constexpr int kSuccess = 0;
constexpr int kCudaFailed = 1;
constexpr int kInvalidArgument = 4;
constexpr int kInvalidUsage = 5;
constexpr int kInProgress = 7;

enum class Kind : std::uint8_t { kAllReduce, kBroadcast, kReduce, kReduceScatter, kAllGather, kSend, kRecv };

/// One call of one rank. Addresses are the device's.
struct Call {
  Kind kind = Kind::kAllReduce;
  std::uint64_t in = 0;
  std::uint64_t out = 0;
  std::size_t count = 0;
  int dtype = 0;
  int op = 0;
  int peer = 0;  // or the root
  fake_cuda::Stream* stream = nullptr;
};

/// A group of calls that all members make.
struct Round {
  std::shared_ptr<fake_cuda::Joint> joint;
  std::vector<std::vector<Call>> calls;  // by rank
};

struct Communicator;

/// What the members of one communicator share.
struct Clique {
  int ranks = 0;
  std::vector<Communicator*> members;  // by rank; null: has not come, or has gone
  int come = 0;
  std::set<int> devices;
  int error = kSuccess;  // of all members
  std::map<std::uint64_t, std::shared_ptr<Round>> rounds;
};

struct Communicator {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  bool hangs = false;
  int error = kSuccess;
  std::vector<Call> waiting;  // made, not in a stream yet
  int asked = 0;              // how often about those
  bool finalizing = false;
  std::uint64_t next_round = 0;
  std::map<int, std::pair<int, double>> scaled_sums;  // dtype and factor by operation
  std::vector<std::pair<fake_cuda::Stream*, std::shared_ptr<fake_cuda::Joint>>> entered;
};

struct Failure {
  std::string function;
  int calls_left = 0;
  int code = 0;
};

struct Library {
  int version = 21805;
  bool hang = false;
  int misuses = 0;
  int aborted = 0;
  std::uint64_t next_id = 1;
  std::map<std::string, int> calls;
  std::vector<Failure> failures;
  std::map<std::uint64_t, std::shared_ptr<Clique>> cliques;
  std::set<Communicator*> alive;
  static Library& get();
  int misuse() {
    ++misuses;
    return kInvalidUsage;
  }
};

/// Bytes of an element of ncclDataType_t; 0 for none.
[[nodiscard]] std::size_t bytes_of(int dtype);
/// Puts what the communicator has waiting into its streams, as its next round.
void enter(Communicator& communicator);
/// Does the work of a round in which all have come to the same calls; what does not match breaks the clique.
void perform(Clique& clique, const Round& round);

}  // namespace fake_nccl
