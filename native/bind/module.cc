#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

#include <map>
#include <string>

#include "base/stack_source.h"
#include "bind/bind.h"
#include "bind/unlocked.h"
#include "device/cpu_kernels.h"

#define RINGTUNE_TEXT_(x) #x
#define RINGTUNE_TEXT(x) RINGTUNE_TEXT_(x)

namespace {

std::map<std::string, std::string> build_info() {
  return {
      {"version", RINGTUNE_VERSION},
      {"isa", ringtune::kernel_isa()},
#if defined(__clang__)
      {"compiler", "clang " __clang_version__},
#else
      {"compiler", "gcc " __VERSION__},
#endif
      {"built_for_python", RINGTUNE_TEXT(PY_MAJOR_VERSION) "." RINGTUNE_TEXT(PY_MINOR_VERSION)},
      {"nccl", ""},
      {"mpi", ""},
  };
}

}  // namespace

NB_MODULE(_native, module) {
  module.doc() = "The native runtime of ringtune. Addresses are ints, as of `tensor.data_ptr()`; times in nanoseconds.";
  // A script that ends by an exception leaves the session open; the runtime is closed at exit all the same.
  nanobind::set_leak_warnings(false);
  ringtune::bind::add_errors(module);
  ringtune::bind::add_exits(module);
  ringtune::bind::add_store(module);
  ringtune::bind::add_runtime(module);
  ringtune::bind::add_control_simulation(module);
  ringtune::bind::add_compression(module);
  ringtune::bind::add_merging(module);
  ringtune::bind::add_cuda(module);
  ringtune::bind::add_gpu_kernels(module);
  ringtune::bind::add_fast_path(module);
  ringtune::bind::watch_interpreter_end(module);
  module.def("open_stack_source", &ringtune::open_stack_source, nanobind::arg("signal_number"),
             "The descriptor that a writer of the main thread's stack, registered for this signal, is to write to.");
  module.def("arm_stack_source", &ringtune::arm_stack_source, nanobind::arg("own_folder"));
  module.def("build_info", &build_info, "What was built: version, instruction set in use, compiler.");
}
