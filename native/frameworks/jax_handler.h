// The custom call by which programs that JAX has compiled for the CPU ask for collectives.
#pragma once

#include <functional>

#include "frameworks/xla_ffi.h"

namespace ringtune::frameworks {

/// Takes the operands from their tensors' buffers, and leaves the results in those of the program; tokens, which only
/// put the calls of a program in order, pass by. The string attribute "call" is a CallPlan's text. Blocks until all
/// tensors are done. An error is "ringtune.CLASS: text", with the class of `ringtune.errors`.
[[nodiscard]] xla::Error* jax_collective(xla::CallFrame* frame);

/// Called before a program gets an error, on its thread. Empty: nothing is called. Any thread.
void on_jax_failure(std::function<void()> call);

}  // namespace ringtune::frameworks
