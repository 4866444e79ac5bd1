// All kernels by name: device_kernels.cc asks for them so.
#pragma once

// X(name, element)
#define RINGTUNE_FLOATS(X)           \
  X(float16, ringtune::Float16)      \
  X(bfloat16, ringtune::Bfloat16)    \
  X(float32, ringtune::Plain<float>) \
  X(float64, ringtune::Plain<double>)
#define RINGTUNE_INTEGERS(X) \
  X(uint8, unsigned char)    \
  X(int8, signed char)       \
  X(int16, short)            \
  X(int32, int)              \
  X(int64, long long)
// X(from, to, element, element): factors change what a dtype's own values are too.
#define RINGTUNE_CASTS_FROM(X, from, From)       \
  X(from, float16, From, ringtune::Float16)      \
  X(from, bfloat16, From, ringtune::Bfloat16)    \
  X(from, float32, From, ringtune::Plain<float>) \
  X(from, float64, From, ringtune::Plain<double>)
#define RINGTUNE_CASTS(X)                                 \
  RINGTUNE_CASTS_FROM(X, float16, ringtune::Float16)      \
  RINGTUNE_CASTS_FROM(X, bfloat16, ringtune::Bfloat16)    \
  RINGTUNE_CASTS_FROM(X, float32, ringtune::Plain<float>) \
  RINGTUNE_CASTS_FROM(X, float64, ringtune::Plain<double>)
// X(name, element, op name, op)
#define RINGTUNE_NUMBER_OPS(X, name, Element) \
  X(name, Element, sum, ringtune::Sum)        \
  X(name, Element, min, ringtune::Min)        \
  X(name, Element, max, ringtune::Max)        \
  X(name, Element, product, ringtune::Product)
#define RINGTUNE_REDUCTIONS(X)                                  \
  RINGTUNE_NUMBER_OPS(X, uint8, ringtune::Plain<unsigned char>) \
  RINGTUNE_NUMBER_OPS(X, int8, ringtune::Plain<signed char>)    \
  RINGTUNE_NUMBER_OPS(X, int16, ringtune::Plain<short>)         \
  RINGTUNE_NUMBER_OPS(X, int32, ringtune::Plain<int>)           \
  RINGTUNE_NUMBER_OPS(X, int64, ringtune::Plain<long long>)     \
  RINGTUNE_NUMBER_OPS(X, float16, ringtune::Float16)            \
  RINGTUNE_NUMBER_OPS(X, bfloat16, ringtune::Bfloat16)          \
  RINGTUNE_NUMBER_OPS(X, float32, ringtune::Plain<float>)       \
  RINGTUNE_NUMBER_OPS(X, float64, ringtune::Plain<double>)      \
  X(bool, ringtune::Plain<unsigned char>, sum, ringtune::Or)    \
  X(bool, ringtune::Plain<unsigned char>, min, ringtune::And)   \
  X(bool, ringtune::Plain<unsigned char>, max, ringtune::Or)    \
  X(bool, ringtune::Plain<unsigned char>, product, ringtune::And)

#define RINGTUNE_KERNEL extern "C" __global__ void __launch_bounds__(ringtune::kThreads)

RINGTUNE_KERNEL copy_bytes(unsigned long long chunks, unsigned int count) {
  ringtune::for_each_chunk(chunks, count, [](const ringtune::Chunk& chunk) { ringtune::copy_chunk(chunk); });
}

#define RINGTUNE_DEFINE(from, to, From, To)                                                                            \
  RINGTUNE_KERNEL cast_##from##_##to(unsigned long long chunks, unsigned int count, double factor) {                   \
    ringtune::for_each_chunk(chunks, count,                                                                            \
                             [=](const ringtune::Chunk& chunk) { ringtune::convert_chunk<From, To>(chunk, factor); }); \
  }
RINGTUNE_CASTS(RINGTUNE_DEFINE)
#undef RINGTUNE_DEFINE

#define RINGTUNE_DEFINE(name, T)                                                                              \
  RINGTUNE_KERNEL scale_##name(unsigned long long chunks, unsigned int count, double factor) {                \
    ringtune::for_each_chunk(chunks, count,                                                                   \
                             [=](const ringtune::Chunk& chunk) { ringtune::scale_chunk<T>(chunk, factor); }); \
  }
RINGTUNE_INTEGERS(RINGTUNE_DEFINE)
#undef RINGTUNE_DEFINE

#define RINGTUNE_DEFINE(name, Element, op, Op) \
  RINGTUNE_KERNEL reduce_##name##_##op(ringtune::Operands what) { ringtune::reduce_all<Element>(what, Op{}); }
RINGTUNE_REDUCTIONS(RINGTUNE_DEFINE)
#undef RINGTUNE_DEFINE

#define RINGTUNE_DEFINE(name, Element)                                               \
  RINGTUNE_KERNEL dots_##name(unsigned long long chunks, unsigned long long parts) { \
    __shared__ ringtune::DotsOfThreads shared;                                       \
    ringtune::dots_of_chunk<Element>(chunks, parts, shared);                         \
  }
RINGTUNE_FLOATS(RINGTUNE_DEFINE)
#undef RINGTUNE_DEFINE

RINGTUNE_KERNEL dots_total(unsigned long long parts, unsigned long long first, unsigned long long totals) {
  __shared__ ringtune::DotsOfThreads shared;
  ringtune::dots_of_tensor(parts, first, totals, shared);
}

#define RINGTUNE_DEFINE(name, Element)                                                                          \
  RINGTUNE_KERNEL adasum_##name(ringtune::Operands what, unsigned long long parts, unsigned int count) {        \
    __shared__ ringtune::DotsOfThreads shared;                                                                  \
    ringtune::combine<Element>(what, parts, count, shared);                                                     \
  }
RINGTUNE_FLOATS(RINGTUNE_DEFINE)
#undef RINGTUNE_DEFINE
