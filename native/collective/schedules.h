// Allreduce algorithms as tables: which rank moves which bytes to whom, step by step. Pure functions, tested as such;
// schedule_runner.h carries one out. The ring is not here: it is a stream, see ring_schedule.h.
//
// All give bitwise equal results on all ranks: whenever two ranks fold the same bytes, both put the contribution of the
// lower one first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collective/ring_schedule.h"

namespace ringtune {

/// What becomes of bytes that arrive.
enum class Fold : std::uint8_t {
  kCopy,    // they replace the own ones
  kAfter,   // own = own op arrived
  kBefore,  // own = arrived op own
};

struct Send {
  int peer;  // position in the group
  ChunkRange range;
  friend bool operator==(const Send&, const Send&) = default;
};

struct Receive {
  int peer;
  ChunkRange range;
  Fold fold;
  friend bool operator==(const Receive&, const Receive&) = default;
};

/// Everything of a step goes on at once; the next step begins when it is done. A step that sends and receives the same
/// bytes exchanges them: each is overwritten only after it was sent.
struct Step {
  std::vector<Send> sends = {};
  std::vector<Receive> receives = {};
  friend bool operator==(const Step&, const Step&) = default;
};
using Schedule = std::vector<Step>;

/// log2 n exchanges of all bytes. Other numbers of ranks than powers of two: the first ranks pair up before and after.
[[nodiscard]] Schedule recursive_doubling(int rank, int size, std::size_t bytes);

/// Reduce-scatter by halving exchanges, allgather by doubling ones (Rabenseifner): each rank moves about 2 times the
/// bytes whatever n. Other numbers than powers of two as above. `element_bytes`: no element is cut.
/// Source: R. Thakur, R. Rabenseifner, W. Gropp, Optimization of Collective Communication Operations in MPICH (2005).
[[nodiscard]] Schedule halving_doubling(int rank, int size, std::size_t bytes, std::size_t element_bytes);

/// Binomial tree to rank 0 and back: as many steps up as down.
[[nodiscard]] Schedule binomial_tree(int rank, int size, std::size_t bytes);

/// One step: the buffer holds a block of `block_bytes` for every rank, the own one filled; everybody sends it to all.
[[nodiscard]] Schedule direct_allgather(int rank, int size, std::size_t block_bytes);

}  // namespace ringtune
