// The Python face: the only folder that sees Python.h.
#pragma once

#include <nanobind/nanobind.h>

#include "runtime/runtime.h"

namespace ringtune::bind {

// What dicts, lists and tuples hold: the build makes the stub `_native.pyi` of the signatures.
using IntByName = nanobind::typed<nanobind::dict, nanobind::str, int>;
using AnyByName = nanobind::typed<nanobind::dict, nanobind::str, nanobind::any>;
using AnyList = nanobind::typed<nanobind::list, nanobind::any>;
using AnyTuple = nanobind::typed<nanobind::tuple, nanobind::any, nanobind::ellipsis>;

/// The statistics of a step by name.
IntByName fields_of(const StepStats& stats);

void add_errors(nanobind::module_& module);
void add_exits(nanobind::module_& module);
void add_store(nanobind::module_& module);
void add_runtime(nanobind::module_& module);
void add_control_simulation(nanobind::module_& module);
void add_fast_path(nanobind::module_& module);
void add_collectives(nanobind::class_<Runtime>& runtime);
void add_devices(nanobind::class_<Runtime>& runtime);
void add_frameworks(nanobind::module_& module, nanobind::class_<Runtime>& runtime);
void add_cuda(nanobind::module_& module);
void add_gpu_kernels(nanobind::module_& module);
void add_compression(nanobind::module_& module);
void add_merging(nanobind::module_& module);

}  // namespace ringtune::bind
