#include "collective/schedules.h"

#include <bit>
#include <span>

#include "base/check.h"

namespace ringtune {
namespace {

/// How n ranks become a power of two: of the first 2 * `extra` ranks each odd one hands its bytes to its lower
/// neighbour and gets the result from it at the end. The others have consecutive numbers, in the order of ranks.
struct Folding {
  int core;   // ranks that stay: a power of two
  int extra;  // ranks that hand over

  explicit Folding(int size)
      : core(static_cast<int>(std::bit_floor(static_cast<unsigned>(size)))), extra(size - core) {}
  [[nodiscard]] bool changes_owner(int rank) const { return rank < 2 * extra && rank % 2 == 1; }
  [[nodiscard]] bool takes_over(int rank) const { return rank < 2 * extra && rank % 2 == 0; }
  [[nodiscard]] int number_of(int rank) const { return rank < 2 * extra ? rank / 2 : rank - extra; }
  [[nodiscard]] int rank_of(int number) const { return number < extra ? 2 * number : number + extra; }
};

void check_rank(int rank, int size) {
  RINGTUNE_CHECK_GE(size, 1);
  RINGTUNE_CHECK(rank >= 0 && rank < size, "rank ", rank, " of ", size);
}

/// Wraps what the core does in the first and last step of those outside it.
template <typename Core>
Schedule folded(int rank, int size, std::size_t bytes, Core core) {
  check_rank(rank, size);
  const Folding folding(size);
  const ChunkRange all{0, bytes};
  if (folding.changes_owner(rank)) {
    return {{.sends = {{rank - 1, all}}}, {.receives = {{rank - 1, all, Fold::kCopy}}}};
  }
  Schedule schedule;
  const bool takes_over = folding.takes_over(rank);
  if (takes_over) schedule.push_back({.receives = {{rank + 1, all, Fold::kAfter}}});
  core(folding, schedule);
  if (takes_over) schedule.push_back({.sends = {{rank + 1, all}}});
  return schedule;
}

Fold fold_of(int own, int peer) { return own < peer ? Fold::kAfter : Fold::kBefore; }

}  // namespace

Schedule recursive_doubling(int rank, int size, std::size_t bytes) {
  return folded(rank, size, bytes, [&](const Folding& folding, Schedule& schedule) {
    const int own = folding.number_of(rank);
    for (int distance = 1; distance < folding.core; distance *= 2) {
      const int other = own ^ distance;
      const int peer = folding.rank_of(other);
      schedule.push_back({.sends = {{peer, {0, bytes}}}, .receives = {{peer, {0, bytes}, fold_of(own, other)}}});
    }
  });
}

Schedule halving_doubling(int rank, int size, std::size_t bytes, std::size_t element_bytes) {
  return folded(rank, size, bytes, [&](const Folding& folding, Schedule& schedule) {
    const int own = folding.number_of(rank);
    const std::vector<ChunkRange> chunks = cut_chunks(bytes, element_bytes, folding.core);
    // The chunks of `count` consecutive numbers from `first` lie side by side.
    const auto range = [&](int first, int count) {
      const ChunkRange& low = chunks[static_cast<std::size_t>(first)];
      const ChunkRange& high = chunks[static_cast<std::size_t>(first + count - 1)];
      return ChunkRange{low.begin, high.begin + high.size - low.begin};
    };
    for (int half = folding.core / 2; half >= 1; half /= 2) {
      const int other = own ^ half;
      const int peer = folding.rank_of(other);
      schedule.push_back({.sends = {{peer, range(other / half * half, half)}},
                          .receives = {{peer, range(own / half * half, half), fold_of(own, other)}}});
    }
    for (int half = 1; half < folding.core; half *= 2) {
      const int other = own ^ half;
      const int peer = folding.rank_of(other);
      schedule.push_back({.sends = {{peer, range(own / half * half, half)}},
                          .receives = {{peer, range(other / half * half, half), Fold::kCopy}}});
    }
  });
}

Schedule binomial_tree(int rank, int size, std::size_t bytes) {
  check_rank(rank, size);
  const ChunkRange all{0, bytes};
  Schedule up;
  Schedule down;
  for (int distance = 1; distance < size; distance *= 2) {
    if ((rank & distance) != 0) {
      up.push_back({.sends = {{rank - distance, all}}});
      down.push_back({.receives = {{rank - distance, all, Fold::kCopy}}});
      break;
    }
    if (rank + distance < size) {
      up.push_back({.receives = {{rank + distance, all, Fold::kAfter}}});
      down.push_back({.sends = {{rank + distance, all}}});
    }
  }
  up.insert(up.end(), down.rbegin(), down.rend());
  return up;
}

Schedule direct_allgather(int rank, int size, std::size_t block_bytes) {
  check_rank(rank, size);
  const auto block = [&](int of) { return ChunkRange{static_cast<std::size_t>(of) * block_bytes, block_bytes}; };
  Step step;
  for (int turn = 1; turn < size; ++turn) {  // each rank begins with another one
    const int to = (rank + turn) % size;
    const int from = (rank + size - turn) % size;
    step.sends.push_back({to, block(rank)});
    step.receives.push_back({from, block(from), Fold::kCopy});
  }
  if (size == 1) return {};
  return {step};
}

}  // namespace ringtune
