#include "runtime/control_simulation.h"

#include "bind/bind.h"

namespace nb = nanobind;

namespace ringtune::bind {
namespace {

using Phases = nb::typed<nb::dict, nb::str, AnyByName>;

AnyByName dict_of(const SimulationLoad& load) {
  AnyByName dict;
  dict["messages"] = load.messages;
  dict["bytes"] = load.bytes;
  dict["ns"] = load.ns;
  return dict;
}

AnyByName dict_of(const SimulationPhase& phase) {
  AnyByName dict;
  dict["coordinator"] = dict_of(phase.coordinator);
  dict["busiest"] = dict_of(phase.busiest);
  dict["mean"] = dict_of(phase.mean);
  dict["all_messages"] = phase.all_messages;
  dict["all_bytes"] = phase.all_bytes;
  return dict;
}

Phases simulate_negotiation(int ranks, int tensors, int cycles, int fan_out) {
  ControlSimulation result;
  {
    const nb::gil_scoped_release released;
    result = simulate_control({ranks, tensors, cycles, fan_out});
  }
  Phases dict;
  dict["cold"] = dict_of(result.cold);
  dict["cached"] = dict_of(result.cached);
  dict["steady"] = dict_of(result.steady);
  return dict;
}

}  // namespace

void add_control_simulation(nb::module_& module) {
  module.def("simulate_negotiation", &simulate_negotiation, nb::arg("ranks"), nb::arg("tensors"), nb::arg("cycles"),
             nb::arg("fan_out") = kDefaultFanOut,
             "What the negotiation of a job of so many ranks costs per cycle, by phase: cold, cached, steady.");
  module.attr("CONTROL_FAN_OUT") = kDefaultFanOut;
}

}  // namespace ringtune::bind
