// What of TensorFlow's C interface the ops use, declared here: neither its headers nor its library are needed to build.
// The functions are those of the library that the process has loaded; 2.13 is the first version that has all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace ringtune::frameworks::tf {

// Opaque to us, as they are to every user of that interface.
struct Status;
struct Tensor;
struct OpDefinition;
struct KernelBuilder;
struct Construction;  // of a kernel: gives its attributes
struct Context;       // of one run: gives inputs, takes outputs
struct Done;          // ends a run
struct ShapeContext;
struct Shape;

enum DataType : int {
  kFloat = 1,
  kDouble = 2,
  kInt32 = 3,
  kUint8 = 4,
  kInt16 = 5,
  kInt8 = 6,
  kComplex64 = 8,
  kInt64 = 9,
  kBool = 10,
  kBfloat16 = 14,
  kUint16 = 17,
  kComplex128 = 18,
  kHalf = 19,
  kUint32 = 22,
  kUint64 = 23,
};

enum Code : int { kOk = 0, kUnknown = 2, kInvalidArgument = 3, kFailedPrecondition = 9, kAborted = 10 };

using ShapeFunction = void (*)(ShapeContext*, Status*);
using Create = void* (*)(Construction*);
using Compute = void (*)(void*, Context*);
using ComputeAsync = void (*)(void*, Context*, Done*);
using Delete = void (*)(void*);

// NAME(result, arguments): the function TF_NAME.
#define RINGTUNE_TENSORFLOW_FUNCTIONS(NAME)                                                                         \
  NAME(NewStatus, Status*, ())                                                                                      \
  NAME(DeleteStatus, void, (Status*))                                                                               \
  NAME(SetStatus, void, (Status*, Code, const char*))                                                               \
  NAME(GetCode, Code, (const Status*))                                                                              \
  NAME(Message, const char*, (const Status*))                                                                       \
  NAME(NewOpDefinitionBuilder, OpDefinition*, (const char*))                                                        \
  NAME(OpDefinitionBuilderAddAttr, void, (OpDefinition*, const char*))                                              \
  NAME(OpDefinitionBuilderAddInput, void, (OpDefinition*, const char*))                                             \
  NAME(OpDefinitionBuilderAddOutput, void, (OpDefinition*, const char*))                                            \
  NAME(OpDefinitionBuilderSetIsStateful, void, (OpDefinition*, bool))                                               \
  NAME(OpDefinitionBuilderSetShapeInferenceFunction, void, (OpDefinition*, ShapeFunction))                          \
  NAME(RegisterOpDefinition, void, (OpDefinition*, Status*))                                                        \
  NAME(NewKernelBuilder, KernelBuilder*, (const char*, const char*, Create, Compute, Delete))                       \
  NAME(NewAsyncKernelBuilder, KernelBuilder*, (const char*, const char*, Create, ComputeAsync, Delete))             \
  NAME(RegisterKernelBuilder, void, (const char*, KernelBuilder*, Status*))                                         \
  NAME(OpKernelConstruction_GetAttrSize, void, (Construction*, const char*, std::int32_t*, std::int32_t*, Status*)) \
  NAME(OpKernelConstruction_GetAttrString, void, (Construction*, const char*, char*, std::size_t, Status*))         \
  NAME(OpKernelConstruction_GetAttrInt64, void, (Construction*, const char*, std::int64_t*, Status*))               \
  NAME(OpKernelConstruction_GetAttrInt64List, void, (Construction*, const char*, std::int64_t*, int, Status*))      \
  NAME(OpKernelConstruction_GetAttrStringList, void,                                                                \
       (Construction*, const char*, char**, std::size_t*, int, void*, std::size_t, Status*))                        \
  NAME(OpKernelConstruction_Failure, void, (Construction*, Status*))                                                \
  NAME(NumInputs, int, (Context*))                                                                                  \
  NAME(GetInput, void, (Context*, int, Tensor**, Status*))                                                          \
  NAME(ForwardInputOrAllocateOutput, Tensor*,                                                                       \
       (Context*, const int*, int, int, const std::int64_t*, int, int*, Status*))                                   \
  NAME(AllocateOutput, Tensor*, (Context*, int, DataType, const std::int64_t*, int, std::size_t, Status*))          \
  NAME(OpKernelContext_Failure, void, (Context*, Status*))                                                          \
  NAME(TensorType, DataType, (const Tensor*))                                                                       \
  NAME(NumDims, int, (const Tensor*))                                                                               \
  NAME(Dim, std::int64_t, (const Tensor*, int))                                                                     \
  NAME(TensorByteSize, std::size_t, (const Tensor*))                                                                \
  NAME(TensorData, void*, (const Tensor*))                                                                          \
  NAME(DeleteTensor, void, (Tensor*))                                                                               \
  NAME(ShapeInferenceContextNumInputs, std::int64_t, (ShapeContext*))                                               \
  NAME(NewShapeHandle, Shape*, ())                                                                                  \
  NAME(DeleteShapeHandle, void, (Shape*))                                                                           \
  NAME(ShapeInferenceContextGetInput, void, (ShapeContext*, int, Shape*, Status*))                                  \
  NAME(ShapeInferenceContextSetOutput, void, (ShapeContext*, int, Shape*, Status*))                                 \
  NAME(ShapeInferenceContextRankKnown, int, (ShapeContext*, Shape*))                                                \
  NAME(ShapeInferenceContextRank, std::int64_t, (ShapeContext*, Shape*))                                            \
  NAME(ShapeInferenceContextScalar, Shape*, (ShapeContext*))                                                        \
  NAME(ShapeInferenceContextVectorFromSize, Shape*, (ShapeContext*, std::size_t))                                   \
  NAME(ShapeInferenceContextSubshape, void, (ShapeContext*, Shape*, std::int64_t, std::int64_t, Shape*, Status*))   \
  NAME(ShapeInferenceContextConcatenateShapes, void, (ShapeContext*, Shape*, Shape*, Shape*, Status*))

struct Api {
#define RINGTUNE_TENSORFLOW_MEMBER(NAME, RESULT, ARGUMENTS) RESULT(*NAME) ARGUMENTS = nullptr;
  RINGTUNE_TENSORFLOW_FUNCTIONS(RINGTUNE_TENSORFLOW_MEMBER)  // NOLINT(readability-identifier-naming)
#undef RINGTUNE_TENSORFLOW_MEMBER
};

/// Finds the functions in the library that the process has loaded; returns what is missing, empty when all is there.
[[nodiscard]] std::string load_api();
/// Of load_api().
[[nodiscard]] const Api& api() noexcept;

/// A status that is deleted when it goes out of scope.
class OwnedStatus {
 public:
  OwnedStatus() : status_(api().NewStatus()) {}
  ~OwnedStatus() { api().DeleteStatus(status_); }
  OwnedStatus(const OwnedStatus&) = delete;
  OwnedStatus& operator=(const OwnedStatus&) = delete;
  [[nodiscard]] Status* get() const noexcept { return status_; }
  [[nodiscard]] bool ok() const { return api().GetCode(status_) == kOk; }

 private:
  Status* status_;
};

}  // namespace ringtune::frameworks::tf
