// Where the main thread of this process stands in Python. Python's faulthandler writes that on a signal, without the
// interpreter's lock: so it is known of a thread too that computes in native code or keeps the lock to itself.
#pragma once

#include <optional>
#include <string>

#include "base/clock.h"

namespace ringtune {

/// Makes the file that the stack is to be written to and puts a handler on the signal that says when it is complete.
/// Whoever writes the stack (faulthandler.register(signal, file, all_threads=False, chain=True)) is registered after
/// that, then the source is armed. The descriptor stays this module's. Once in a process; throws Error when the kernel
/// refuses, or when the signal has a handler already.
[[nodiscard]] int open_stack_source(int signal_number);
/// The writer is registered: the signal may be sent. `own_folder`: frames of files in it are left out where they are
/// the innermost, since they say only that a caller waits; empty: of none.
void arm_stack_source(const std::string& own_folder);
void disarm_stack_source() noexcept;

/// The stack, innermost frame first, as faulthandler writes it; without frames when the main thread runs no Python,
/// empty when it takes no signal until the deadline, nothing when there is no source. Blocks; one thread at a time
/// looks, others wait for it.
[[nodiscard]] std::optional<std::string> read_stack(Deadline deadline);

}  // namespace ringtune
