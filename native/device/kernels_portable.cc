// Kernels for the baseline instruction set of the build, in vectors of 16 bytes (SSE2, NEON).
#include "device/kernel_loops.h"

namespace ringtune::device {

const KernelTable kPortableKernels = make_table<16, HalfPairs<16>, BfloatPairs<16>, HalfElement>("portable");

}  // namespace ringtune::device
