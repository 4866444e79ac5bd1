// The kernels of the ops: asynchronous, so that none keeps one of TensorFlow's few threads while it waits for other
// ranks. Blocking ones would deadlock: two ranks' threads would wait in different tensors.
#pragma once

#include "collective/kind.h"
#include "frameworks/tensorflow_api.h"

namespace ringtune::frameworks::tf {

struct KernelFunctions {
  Create create;
  ComputeAsync compute;
  Delete remove;
};
[[nodiscard]] KernelFunctions kernel_of(CollectiveKind kind);

// Of RingtuneAsk, which waits for nobody.
void* create_question(Construction* construction);
void answer(void* question, Context* context);
void delete_question(void* question);

/// Of RingtuneEndStep.
void end_step(void* nothing, Context* context);

}  // namespace ringtune::frameworks::tf
