// The processor cores that processes may use.
#pragma once

#include <sched.h>

#include <bitset>
#include <span>

#include "base/bytes.h"

namespace ringtune {

/// Of one host, by the kernel's number.
using CoreSet = std::bitset<CPU_SETSIZE>;

/// Those that the calling thread may use; none when the kernel does not say.
[[nodiscard]] CoreSet usable_cores() noexcept;

/// On the wire: always as many bytes.
void write_cores(ByteWriter& out, const CoreSet& cores);
[[nodiscard]] CoreSet read_cores(ByteReader& in);  // throws Protocol

/// Whether so many threads, each of which may use the cores of its set, can all have a core of their own at the same
/// time. Exact for sets that are disjoint or nested, as launchers make them; for others it may be true too soon. False
/// where a set is empty.
[[nodiscard]] bool run_at_once(std::span<const CoreSet> threads) noexcept;

}  // namespace ringtune
