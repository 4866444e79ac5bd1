// The sizes at which collectives in shared memory change what they do: one table, to be measured anew as a whole when
// the machine changes (tests/native/bench/shared_allreduce_bench.cc and shared_exchange_bench.cc).
//
// Measured on two machines with two virtual cores each. "EPYC": AMD EPYC (Zen 4, 1 MiB of second-level cache), whose
// cores sometimes share a third-level cache and sometimes none. "Xeon": Intel Xeon (Emerald Rapids, 2 MiB of
// second-level cache), with one third-level cache for the socket. Each group names date and commit; the commit's
// native/README.md or message holds the figures.
#pragma once

#include <cstddef>

namespace ringtune {

/// Sizes in bytes, of a message or of a piece of it. All members of a group have the same values.
struct ShmThresholds {
  // A message is cut at least that often, so that the members work at the same time, but into no smaller pieces, since
  // each piece costs a hand-over. EPYC, 2026-11-21, 1bd46ab; up to 4 MiB pieces are as large as a slot.
  std::size_t least_pieces = 2;
  std::size_t smallest_piece = 16 << 10;
  // A message that leaves the caches anyway has small pieces, so that at least the slots stay cached. EPYC, 2026-11-21,
  // 1bd46ab.
  std::size_t large_message = 4 << 20;
  std::size_t piece_of_large = 128 << 10;

  // Up to here more than two members reduce everything everywhere: a second exchange would cost more. 2026-11-21,
  // 607a662; the machine was not noted.
  std::size_t reduced_by_all = 8 << 10;
  // The same two for members that take turns on cores. They do not work at the same time anyway, and each hand-over is
  // a switch between them. Four ranks on two cores, 2026-11-23, 2580e72: 16 to 128 KiB gained 8 to 14 %.
  std::size_t reduced_by_all_in_turns = 16 << 10;
  std::size_t smallest_piece_in_turns = 128 << 10;

  // Two members whose slots are fixed both reduce everything, in these pieces: a second hand-over costs more than to
  // read the own half. EPYC, 2026-11-23, 86303f9.
  std::size_t large_message_of_two = 16 << 20;
  std::size_t piece_of_two = 256 << 10;
  // The two threads of one core have each other's data in their caches. Between these sizes, where memory does not
  // limit both, they reduce half each and copy the other half. EPYC, 2026-11-23, 86303f9.
  std::size_t least_halves_in_one_core = 256 << 10;
  std::size_t most_halves_in_one_core = 8 << 20;

  // Two members whose slots change hands both reduce everything below this; from here on they reduce half each and
  // leave the sums where they have read. Xeon, 2026-11-23, 5dc8a5f and edfc303.
  std::size_t least_returned_in_place = 64 << 10;
  // Their pieces: larger ones gain nothing, smaller ones cost hand-overs. Xeon, 2026-11-23, 5dc8a5f.
  std::size_t piece_handed_over = 128 << 10;
  // Up to here every second message begins at its end, since the same tensors' last message has left its last bytes in
  // the second-level cache. Xeon, 2026-11-23, 7ba8a72: 2 to 8 MiB gained 5 to 8 %. Above it tensors come from memory,
  // and are asked for ahead (c2fa199: 9 to 13 %).
  std::size_t most_backwards = 16 << 20;

  // From here on members that share no cache write their slots past the caches and ask for the others' ahead; a smaller
  // message is over sooner in the caches. EPYC, 2026-11-23, a1e6b7b; of more than two members 2026-11-25, d511229
  // (four ranks, 1 MiB: 776 to 257 us).
  std::size_t least_streamed = 4 << 10;
  // Above this two such members would only wait for memory. EPYC, 2026-11-25, d511229; exchanges alone.
  std::size_t most_streamed_of_two = 16 << 20;

  // Pieces of an exchange. All give and then take at the same time: smaller pieces would save no waiting. One gives
  // while the others take: hand-overs are all that they wait for. 2026-11-24, ea24a58 (broadcast of 4 MiB: 380 to
  // 115 us; alltoall of 16 MiB: 2.0 to 1.6 ms); the machine was not noted.
  std::size_t piece_given_together = 256 << 10;
  std::size_t least_pieces_given_by_one = 2;
  std::size_t piece_given_by_one = 512 << 10;
  // Up to here two members of an exchange that share no cache write slots that change hands. EPYC, 2026-11-25, 5b813ef
  // (allreduce of 64 KiB: 8.9 to 5.9 us).
  std::size_t most_alternating_apart = 128 << 10;
  // The own share of an exchange from this size on has left the caches before it is read. Written past them, it takes
  // no other data's place there and is not fetched to be overwritten. 2026-11-24, ea24a58.
  std::size_t least_own_share_streamed = 4 << 20;

  // Large messages one after the other stay in one set of slots, since what slots occupy is lost to the tensors in the
  // caches: from the first size, or from the second one where the second-level cache has `large_cache` bytes, which
  // does not let go of smaller messages in time. EPYC, 2026-11-23, cfc0b05 (4 MiB: 0.38 to 0.42 of the copy limit);
  // Xeon, 2026-11-23, de56443.
  std::size_t least_in_one_set = (2 << 20) + 1;
  std::size_t least_in_one_set_of_large_cache = 1 << 20;
  long large_cache = 2 << 20;
  // From this size on pieces of two members that share a cache lie at the places of a slot in turn. Smaller pieces gain
  // nothing. EPYC, 2026-11-23, a1e6b7b.
  std::size_t least_piece_in_turn = 8 << 10;
  // The distance of members is measured again after so many bytes, because large messages take seconds for 64 rounds.
  // 2026-11-25, 6907ed4.
  std::size_t distance_measured_every = 8 << 20;
};

inline constexpr ShmThresholds kShmThresholds;

}  // namespace ringtune
