// Collectives as asynchronous operations of MXNet's engine, which runs them when their arrays are ready and lets wait
// what reads the results. MXNet's C API is declared here and taken from the library that the process has loaded.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ringtune::frameworks::mxnet {

using Array = void*;  // an NDArrayHandle
using Arrays = std::vector<Array>;

/// `run(context, on_complete, parameter)`: starts; `on_complete` points to a Completion, which must be copied.
using Run = void (*)(void*, void*, void*);

// NAME(result, arguments): the function MXNAME. All but the last of the list return 0, or other than 0 on an error.
#define RINGTUNE_MXNET_FUNCTIONS(NAME)                                                                            \
  NAME(EnginePushAsyncND, int,                                                                                    \
       (Run, void*, void (*)(void*), const void*, Array*, int, Array*, int, const void*, int, const char*, bool)) \
  NAME(ShallowCopyNDArray, int, (Array, Array*))                                                                  \
  NAME(NDArrayFree, int, (Array))                                                                                 \
  NAME(NDArrayGetData, int, (Array, void**))                                                                      \
  NAME(NDArrayGetDType, int, (Array, int*))                                                                       \
  NAME(NDArrayGetShapeEx64, int, (Array, int*, const std::int64_t**))                                             \
  NAME(GetLastError, const char*, ())

struct Api {
#define RINGTUNE_MXNET_DECLARE(NAME, RESULT, ARGUMENTS) RESULT(*NAME) ARGUMENTS = nullptr;
  RINGTUNE_MXNET_FUNCTIONS(RINGTUNE_MXNET_DECLARE)  // NOLINT(readability-identifier-naming): as they are there
#undef RINGTUNE_MXNET_DECLARE
  /// Puts an operation into the engine that brings an array out of oneDNN's layouts; null: MXNet was built without it.
  void (*to_plain_layout)(const void*) = nullptr;
  /// The engine runs each operation while it is put in, and would not tell of errors (MXNET_ENGINE_TYPE=NaiveEngine).
  bool at_once = false;
};

/// How an asynchronous operation ends: the engine's CallbackOnComplete.
struct Completion {
  void (*callback)(void* engine, void* parameter, const void* error) = nullptr;
  void* engine = nullptr;
  void* parameter = nullptr;
};

/// Takes the functions from a library, by its handle of dlopen(). Throws InvalidArgument: it has not all of them.
[[nodiscard]] Api api_of(void* library);
/// From now on; once, before what follows.
void use(const Api& api);

/// Puts the collectives of a CallPlan's text - allreduce, broadcast or reducescatter - into the engine as one operation
/// and returns: input and output of each name, which are the same where it is done in place. A failure is the error of
/// the outputs: "ringtune.CLASS: text"; where the engine runs everything at once, it is returned instead. Throws
/// InvalidArgument for what can be refused before.
[[nodiscard]] std::string push(std::string_view plan, const Arrays& inputs, const Arrays& outputs, int priority);
/// A step of the training ends once all that has been put into the engine before has written these arrays.
void push_end_of_step(const Arrays& arrays);

}  // namespace ringtune::frameworks::mxnet
