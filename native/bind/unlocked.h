// Leaves Python's lock to other threads during a call that may still wait when the interpreter ends.
#pragma once

#include <nanobind/nanobind.h>

namespace ringtune::bind {

/// As nanobind::gil_scoped_release. A daemon thread that asks for the lock while the interpreter ends is ended by
/// Python up to 3.13, which unwinds C++ frames that allow no exception and so aborts the process. Such a thread waits
/// here for the end of the process instead, as Python 3.14 has it.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked();
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* state_;
};

/// Lets Python say, before its interpreter ends, that no other thread is to ask for the lock any more.
void watch_interpreter_end(nanobind::module_& module);

}  // namespace ringtune::bind
