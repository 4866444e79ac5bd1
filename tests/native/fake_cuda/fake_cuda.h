// A CUDA driver without a GPU: what tests load in place of libcuda.so.1, and how they direct it.
//
// Device memory is host memory under addresses that cannot be touched (a page fault, where a GPU's address would be
// one too). A stream is a queue of which nothing is done before somebody waits for it - and then only what he has to
// wait for, in order. So a copy that forgot to wait for an event finds what was there before, always; no timing is in
// it. `eager` is the other extreme: all is done as soon as it may. Copies from and to pageable host memory, freed
// device memory and streams of other devices are errors.
#pragma once

#include <cstddef>

extern "C" {

/// As a fresh process has it: two devices, no memory, nothing open. Nothing may use the driver meanwhile.
void fake_cuda_reset();
void fake_cuda_set_devices(int count);
void fake_cuda_set_version(int version);
void fake_cuda_set_eager(int eager);
/// The devices' clock runs faster than the host's by so many ns a second. Before anything is timed.
void fake_cuda_set_clock_drift(int ppb);
/// The `index`-th call from now on (from 0) of that function fails with `code`.
void fake_cuda_fail(const char* function, int index, int code);
/// Calls of that function so far.
int fake_cuda_calls(const char* function);
/// What is put into the stream from now on is not done before release, whoever waits for it.
void fake_cuda_hold(void* stream);
void fake_cuda_release(void* stream);
/// The stream records a graph, or no longer.
void fake_cuda_capture(void* stream, int on);
/// Contexts retained and not released, streams, events, allocations of either kind that are alive.
int fake_cuda_alive();
/// Where the bytes of an allocation really are; null when there is none. For programs whose kernels run on the host.
void* fake_cuda_behind(unsigned long long address);
}
