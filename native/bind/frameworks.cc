// Which runtime the frameworks' handlers ask (frameworks/port.h).
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bind/bind.h"
#include "frameworks/jax_handler.h"
#include "frameworks/mxnet_engine.h"
#include "frameworks/port.h"

namespace nb = nanobind;

namespace ringtune::bind {
namespace {

/// The open runtime's Python object, so that it outlives what is asked of it. Never destroyed: the interpreter may be
/// gone by then.
nb::object& lent() {
  static nb::object& object = *new nb::object;
  return object;
}

void open_to_frameworks(nb::handle_t<Runtime> self) {
  frameworks::port().open(nb::cast<Runtime&>(self));
  lent() = nb::borrow(self);
}

void close_to_frameworks(nb::handle_t<Runtime> self) {
  const Runtime& runtime = nb::cast<Runtime&>(self);
  {
    const nb::gil_scoped_release released;
    frameworks::port().close(runtime);
  }
  if (lent().is(self)) lent().reset();
}

/// Blocks without the interpreter's lock.
nb::object next_framework_step(Runtime&) {
  std::optional<frameworks::EndedStep> step;
  {
    const nb::gil_scoped_release released;
    step = frameworks::port().next_step();
  }
  if (!step) return nb::none();
  IntByName fields = fields_of(step->stats);
  fields["detected"] = step->detected ? 1 : 0;
  return fields;
}

/// What JAX registers, as it wants it.
nb::capsule jax_handler() {
  return nb::capsule(reinterpret_cast<const void*>(&frameworks::jax_collective), "xla._CUSTOM_CALL_TARGET");
}

/// Python that is called from threads of a framework.
void on_jax_failure(nb::object call) {
  if (call.is_none()) return frameworks::on_jax_failure({});
  const auto drop = [](nb::object* held) {
    if (!Py_IsInitialized()) return;  // the interpreter has gone, and all of its objects with it
    const nb::gil_scoped_acquire acquired;
    delete held;
  };
  const std::shared_ptr<nb::object> held(new nb::object(std::move(call)), drop);
  frameworks::on_jax_failure([held] {
    if (!Py_IsInitialized()) return;
    const nb::gil_scoped_acquire acquired;
    try {
      (*held)();
    } catch (nb::python_error& error) {
      error.discard_as_unraisable(*held);
    }
  });
}

frameworks::mxnet::Arrays mxnet_arrays(const std::vector<std::uintptr_t>& handles) {
  frameworks::mxnet::Arrays arrays;
  for (const std::uintptr_t handle : handles) arrays.push_back(reinterpret_cast<void*>(handle));
  return arrays;
}

void use_mxnet(std::uintptr_t library) {
  frameworks::mxnet::use(frameworks::mxnet::api_of(reinterpret_cast<void*>(library)));
}

std::string push_to_mxnet(std::string_view call, const std::vector<std::uintptr_t>& inputs,
                          const std::vector<std::uintptr_t>& outputs, int priority) {
  const nb::gil_scoped_release released;
  return frameworks::mxnet::push(call, mxnet_arrays(inputs), mxnet_arrays(outputs), priority);
}

void push_step_to_mxnet(const std::vector<std::uintptr_t>& arrays) {
  const nb::gil_scoped_release released;
  frameworks::mxnet::push_end_of_step(mxnet_arrays(arrays));
}

}  // namespace

void add_frameworks(nb::module_& module, nb::class_<Runtime>& runtime) {
  module.def("jax_handler", &jax_handler, nb::sig("def jax_handler() -> typing.Any"),
             "The custom call for programs of JAX on the CPU (frameworks/jax_handler.h).");
  module.def("on_jax_failure", &on_jax_failure, nb::arg("call").none(),
             nb::sig("def on_jax_failure(call: collections.abc.Callable[[], None] | None) -> None"),
             "`call()` before a program of JAX gets an error, on its thread.");
  module.def("use_mxnet", &use_mxnet, nb::arg("library"), nb::sig("def use_mxnet(library: int) -> None"),
             "Takes MXNet's functions from its library, a handle of `dlopen` (frameworks/mxnet_engine.h).");
  module.def(
      "push_to_mxnet", &push_to_mxnet, nb::arg("call"), nb::arg("inputs"), nb::arg("outputs"), nb::arg("priority"),
      nb::sig("def push_to_mxnet(call: str, inputs: collections.abc.Sequence[int], outputs: "
              "collections.abc.Sequence[int], priority: int) -> str"),
      "Puts collectives on arrays, given by their handles, into MXNet's engine; returns what has failed already.");
  module.def("push_step_to_mxnet", &push_step_to_mxnet, nb::arg("arrays"),
             nb::sig("def push_step_to_mxnet(arrays: collections.abc.Sequence[int]) -> None"),
             "A step ends once these arrays are written.");
  runtime
      .def("open_to_frameworks", &open_to_frameworks, nb::sig("def open_to_frameworks(self) -> None"),
           "From now on handlers of frameworks ask this runtime.")
      .def("close_to_frameworks", &close_to_frameworks, nb::sig("def close_to_frameworks(self) -> None"),
           "They do not any more, and what they have asked for is done. Call after `shutdown`.")
      .def(
          "follow_framework_steps", [](Runtime&, bool detect) { frameworks::port().follow_steps(detect); },
          nb::arg("detect"), "Keep the steps that end in programs; `detect`: also those that nobody marks.")
      .def("next_framework_step", &next_framework_step,
           nb::sig("def next_framework_step(self) -> dict[str, int] | None"),
           "Waits for a step; None when `stop_framework_steps` was called and all are taken.")
      .def("stop_framework_steps", [](Runtime&) { frameworks::port().stop_following(); });
}

}  // namespace ringtune::bind
