#include "bind/unlocked.h"

#include <unistd.h>

#include <atomic>
#include <thread>

namespace nb = nanobind;

namespace ringtune::bind {
namespace {

// Sequentially consistent: a thread that counts itself as returning sees the end, or the end sees it.
std::atomic<bool> ending{false};
std::atomic<int> returning{0};
std::atomic<std::thread::id> ender;

void end_interpreter() {
  ender = std::this_thread::get_id();
  ending = true;
  const nb::gil_scoped_release released;  // those that ask for the lock already shall get it
  while (returning > 0) std::this_thread::yield();
}

}  // namespace

Unlocked::~Unlocked() {
  ++returning;
  if (ending && ender.load() != std::this_thread::get_id()) {
    --returning;
    while (true) ::pause();
  }
  PyEval_RestoreThread(state_);
  --returning;
}

void watch_interpreter_end(nb::module_& module) {
  module.def("_end_interpreter", &end_interpreter, "Called by Python at its end.");
  nb::module_::import_("atexit").attr("register")(module.attr("_end_interpreter"));
}

}  // namespace ringtune::bind
