// Kernels for the baseline instruction set of the build.
#include "device/kernel_loops.h"

namespace ringtune::device {

const KernelTable kPortableKernels = make_table("portable", pair_row<HalfPair>(), scale_pairs<HalfPair>);

}  // namespace ringtune::device
