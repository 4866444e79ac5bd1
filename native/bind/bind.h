// The Python face: the only folder that sees Python.h.
#pragma once

#include <nanobind/nanobind.h>

#include "runtime/runtime.h"

namespace ringtune::bind {

void add_errors(nanobind::module_& module);
void add_store(nanobind::module_& module);
void add_runtime(nanobind::module_& module);
void add_control_simulation(nanobind::module_& module);
void add_fast_path(nanobind::module_& module);
void add_collectives(nanobind::class_<Runtime>& runtime);
void add_devices(nanobind::class_<Runtime>& runtime);
void add_cuda(nanobind::module_& module);
void add_gpu_kernels(nanobind::module_& module);
void add_compression(nanobind::module_& module);
void add_merging(nanobind::module_& module);

}  // namespace ringtune::bind
