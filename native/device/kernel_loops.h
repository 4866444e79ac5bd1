// The loops behind KernelTable, written once and compiled per instruction set: a kernel file includes this after its
// target pragma. Internal linkage throughout and no call into library templates: an inline function compiled for
// AVX-512 that the linker picked for everybody would crash older processors.
//
// A `Form` says how elements of one dtype are computed on: `load` takes `kBytes` of them from memory as a `Value`,
// which is a vector or a `Pair` of vectors, `store` puts them back, rounded, and returns what it has written.
#pragma once

#include <array>
#include <limits>
#include <type_traits>

#include "device/convert_loops.h"
#include "device/float16.h"
#include "device/kernel_table.h"
#include "device/vectors.h"
#include "device/widen_loops.h"

namespace ringtune::device {
namespace {

struct Sum {
  template <typename V>
  [[gnu::always_inline]] static V apply(V a, V b) noexcept {
    return a + b;
  }
};
struct Product {
  template <typename V>
  [[gnu::always_inline]] static V apply(V a, V b) noexcept {
    return a * b;
  }
};
// A NaN on either side wins: `a` when it is NaN, else the comparison is false and `b` is taken.
struct Min {
  template <typename V>
  [[gnu::always_inline]] static V apply(V a, V b) noexcept {
    return ((a < b) | (a != a)) ? a : b;
  }
};
struct Max {
  template <typename V>
  [[gnu::always_inline]] static V apply(V a, V b) noexcept {
    return ((a > b) | (a != a)) ? a : b;
  }
};
// On bytes that hold a bool; a comparison's lanes are 0 or -1.
struct Or {
  template <typename V>
  [[gnu::always_inline]] static V apply(V a, V b) noexcept {
    return __builtin_bit_cast(V, (a | b) != 0) & 1;
  }
};
struct And {
  template <typename V>
  [[gnu::always_inline]] static V apply(V a, V b) noexcept {
    return __builtin_bit_cast(V, (a != 0) & (b != 0)) & 1;
  }
};

/// Elements that are computed on as they lie in memory.
template <typename T, std::size_t Bytes>
struct Plain {
  using Scalar = T;
  using Value = Vector<T, Bytes>;
  static constexpr std::size_t kBytes = Bytes;
  [[gnu::always_inline]] static Value load(const std::byte* at) noexcept { return load_loose<Value>(at); }
  [[gnu::always_inline]] static Value store(std::byte* at, Value value) noexcept { return store_loose(at, value); }
};

/// The 16-bit elements of a vector of 32-bit words, each half widened to float32: no lane is packed or unpacked. On
/// little-endian the low half comes first in memory.
template <typename V>
struct Pair {
  V low;
  V high;
};

template <std::size_t Bytes>
struct HalfPairs {
  using Bits = Bits16<Bytes>;
  using Scalar = float;
  using Value = Pair<typename Bits::F32>;
  static constexpr std::size_t kBytes = Bytes;
  [[gnu::always_inline]] static Value load(const std::byte* at) noexcept {
    const auto words = load_loose<typename Bits::U32>(at);
    return {Bits::half_to_float(words & 0xffffu), Bits::half_to_float(words >> 16)};
  }
  [[gnu::always_inline]] static auto store(std::byte* at, Value value) noexcept {
    return store_loose(at, Bits::float_to_half(value.low) | Bits::float_to_half(value.high) << 16);
  }
};

template <std::size_t Bytes>
struct BfloatPairs {
  using Bits = Bits16<Bytes>;
  using Scalar = float;
  using Value = Pair<typename Bits::F32>;
  static constexpr std::size_t kBytes = Bytes;
  [[gnu::always_inline]] static Value load(const std::byte* at) noexcept {
    using F32 = typename Bits::F32;
    const auto words = load_loose<typename Bits::U32>(at);
    return {__builtin_bit_cast(F32, words << 16), __builtin_bit_cast(F32, words & 0xffff0000u)};
  }
  [[gnu::always_inline]] static auto store(std::byte* at, Value value) noexcept {
    return store_loose(
        at, Bits::round_to_bfloat_high(value.low) >> 16 | (Bits::round_to_bfloat_high(value.high) & 0xffff0000u));
  }
};

template <typename Op, typename V>
[[gnu::always_inline]] inline V combine(V a, V b) noexcept {
  return Op::apply(a, b);
}
template <typename Op, typename V>
[[gnu::always_inline]] inline Pair<V> combine(Pair<V> a, Pair<V> b) noexcept {
  return {Op::apply(a.low, b.low), Op::apply(a.high, b.high)};
}

/// Integers are scaled apart (scale_integer).
template <typename Scalar, typename V>
[[gnu::always_inline]] inline V times(V value, Scalar factor) noexcept {
  if constexpr (std::is_floating_point_v<Scalar>) return value * factor;
  return value;
}
template <typename Scalar, typename V>
[[gnu::always_inline]] inline Pair<V> times(Pair<V> value, Scalar factor) noexcept {
  return {value.low * factor, value.high * factor};
}

/// `Unroll` values at byte `at` of all inputs: out = (in[0] op in[1] ...) * factor. Every input is read before `out` is
/// written, so `out` may be one of them. `Inputs` is their number, or 0 when only `n` knows it. `Twice`: to `also` too.
template <typename Form, typename Op, std::size_t Inputs, bool Twice, std::size_t Unroll>
[[gnu::always_inline]] inline void reduce_at(const ReduceJob& job, std::size_t at,
                                             typename Form::Scalar factor) noexcept {
  typename Form::Value sum[Unroll];
  // What is widened to be computed on takes so many instructions a line that few lines are under way by themselves.
  constexpr bool kWidened = sizeof(typename Form::Value) > Form::kBytes;
  if constexpr ((Twice || (Inputs == 2 && kWidened)) && Unroll > 1) {
    for (std::size_t k = 0; k < Inputs; ++k) fetch_ahead<Unroll * Form::kBytes>(job.in[k] + at);
  }
  for (std::size_t u = 0; u < Unroll; ++u) sum[u] = Form::load(job.in[0] + at + u * Form::kBytes);
  const std::size_t n = Inputs == 0 ? job.n : Inputs;
  for (std::size_t k = 1; k < n; ++k) {
    const std::byte* const next = job.in[k] + at;
    for (std::size_t u = 0; u < Unroll; ++u) sum[u] = combine<Op>(sum[u], Form::load(next + u * Form::kBytes));
  }
  for (std::size_t u = 0; u < Unroll; ++u) {
    const auto written = Form::store(job.out + at + u * Form::kBytes, times(sum[u], factor));
    if constexpr (Twice) store_loose(job.also + at + u * Form::kBytes, written);
  }
}

/// What is left after whole values, fewer than `Form::kBytes`: through a padded copy.
template <typename Form, typename Op>
void reduce_rest(const ReduceJob& job, std::size_t at, typename Form::Scalar factor) noexcept {
  const std::size_t bytes = job.end - at;
  std::byte padded[Form::kBytes]{};
  __builtin_memcpy(padded, job.in[0] + at, bytes);
  typename Form::Value sum = Form::load(padded);
  for (std::size_t k = 1; k < job.n; ++k) {
    __builtin_memcpy(padded, job.in[k] + at, bytes);
    sum = combine<Op>(sum, Form::load(padded));
  }
  Form::store(padded, times(sum, factor));
  __builtin_memcpy(job.out + at, padded, bytes);
  if (job.also != nullptr) __builtin_memcpy(job.also + at, padded, bytes);
}

template <typename Form, typename Op, std::size_t Inputs, bool Twice = false>
void reduce_inputs(const ReduceJob& job, typename Form::Scalar factor) noexcept {
  constexpr std::size_t kUnroll = 4;
  constexpr std::size_t kStep = kUnroll * Form::kBytes;
  std::size_t at = job.begin;
  for (; job.end - at >= kStep; at += kStep) reduce_at<Form, Op, Inputs, Twice, kUnroll>(job, at, factor);
  for (; job.end - at >= Form::kBytes; at += Form::kBytes) reduce_at<Form, Op, Inputs, Twice, 1>(job, at, factor);
  if (at != job.end) reduce_rest<Form, Op>(job, at, factor);
}

template <typename Form, typename Op>
void reduce_form(const ReduceJob& job, typename Form::Scalar factor) noexcept {
  switch (job.n) {
    case 1:
      return reduce_inputs<Form, Op, 1>(job, factor);
    case 2:
      return job.also == nullptr ? reduce_inputs<Form, Op, 2>(job, factor)
                                 : reduce_inputs<Form, Op, 2, true>(job, factor);
    default:
      return reduce_inputs<Form, Op, 0>(job, factor);
  }
}

template <typename Form, typename Op>
void reduce_floats(const ReduceJob& job, double factor) {
  reduce_form<Form, Op>(job, static_cast<typename Form::Scalar>(factor));
}

/// Toward zero; out of range goes to the nearest end, NaN to 0 (a plain cast would be undefined).
template <typename T>
[[gnu::always_inline]] inline T truncate(double value) noexcept {
  constexpr double kLow = static_cast<double>(std::numeric_limits<T>::min());
  // For int64 the largest value is no double; everything from 2^63 on is out of range.
  constexpr double kEnd = 2.0 * static_cast<double>(T{1} << (std::numeric_limits<T>::digits - 1));
  constexpr double kHigh = sizeof(T) == 8 ? 9223372036854774784.0 : kEnd - 1.0;
  const double number = value == value ? value : 0.0;
  const double above = number < kLow ? kLow : number;
  const double inside = above > kHigh ? kHigh : above;
  return number >= kEnd ? std::numeric_limits<T>::max() : static_cast<T>(inside);
}

/// An element at any address, whatever type the memory was written as.
template <typename T>
struct [[gnu::packed, gnu::may_alias]] Loose {
  T value;
};

template <typename T>
void scale_integer(std::byte* output, const std::byte* input, std::size_t count, double factor) {
  auto* const out = reinterpret_cast<Loose<T>*>(output);
  const auto* const in = reinterpret_cast<const Loose<T>*>(input);
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) out[i].value = truncate<T>(static_cast<double>(in[i].value) * factor);
}

/// Reduced and then scaled in place, in pieces that stay in the cache between the two. `T` is the signed type where
/// the elements of `Form` are its unsigned twin.
template <typename T, typename Form, typename Op>
void reduce_integers(const ReduceJob& job, double factor) {
  if (factor == 1.0) return reduce_form<Form, Op>(job, {});
  constexpr std::size_t kPieceBytes = 4096;
  ReduceJob piece = job;
  for (; piece.begin != job.end; piece.begin = piece.end) {
    piece.end = job.end - piece.begin < kPieceBytes ? job.end : piece.begin + kPieceBytes;
    if (job.n != 1) reduce_form<Form, Op>(piece, {});
    const std::byte* const from = job.n == 1 ? job.in[0] : job.out;
    scale_integer<T>(job.out + piece.begin, from + piece.begin, (piece.end - piece.begin) / sizeof(T), factor);
  }
}

/// A bool has no factor but 1: refused above.
template <typename Form, typename Op>
void reduce_bools(const ReduceJob& job, double /*factor*/) {
  reduce_form<Form, Op>(job, {});
}

/// Wraps around, as torch's integers do: sums and products of the unsigned twin, whose overflow is defined.
template <typename T, std::size_t Bytes>
constexpr ReduceRow integer_row() {
  using Form = Plain<T, Bytes>;
  using Wrapping = Plain<std::make_unsigned_t<T>, Bytes>;
  return {nullptr,
          reduce_integers<T, Wrapping, Sum>,
          nullptr,
          reduce_integers<T, Form, Min>,
          reduce_integers<T, Form, Max>,
          reduce_integers<T, Wrapping, Product>};
}

template <typename Form>
constexpr ReduceRow float_row() {
  return {nullptr,
          reduce_floats<Form, Sum>,
          nullptr,
          reduce_floats<Form, Min>,
          reduce_floats<Form, Max>,
          reduce_floats<Form, Product>};
}

template <std::size_t Bytes>
constexpr ReduceRow bool_row() {
  using Form = Plain<std::uint8_t, Bytes>;
  return {nullptr,
          reduce_bools<Form, Or>,
          nullptr,
          reduce_bools<Form, And>,
          reduce_bools<Form, Or>,
          reduce_bools<Form, And>};
}

template <typename In, std::size_t Bytes>
constexpr WidenRow widen_row() {
  return {
      nullptr, widen<In, Sum, Bytes>, nullptr, widen<In, Min, Bytes>, widen<In, Max, Bytes>, widen<In, Product, Bytes>};
}

template <std::size_t Bytes>
void fetch(std::byte* out, const std::byte* in, std::size_t bytes) {
  constexpr std::size_t kStep = 4 * Bytes;
  std::size_t at = 0;
  for (; bytes - at >= kStep; at += kStep) {
    fetch_ahead<kStep>(in + at);
    for (std::size_t part = at; part < at + kStep; part += Bytes) {
      store_loose(out + part, load_loose<Vector<std::uint8_t, Bytes>>(in + part));
    }
  }
  if (at < bytes) __builtin_memcpy(out + at, in + at, bytes - at);  // of no bytes, `in` may be null
}

/// `Bytes` is the width of a vector; the 16-bit types have forms that use the instructions at hand, and so has the
/// element of float16 in casts.
template <std::size_t Bytes, typename Half, typename Bfloat, typename Element>
constexpr KernelTable make_table(const char* isa) {
  return {
      isa,
      {{integer_row<std::uint8_t, Bytes>(), integer_row<std::int8_t, Bytes>(), integer_row<std::int16_t, Bytes>(),
        integer_row<std::int32_t, Bytes>(), integer_row<std::int64_t, Bytes>(), float_row<Half>(), float_row<Bfloat>(),
        float_row<Plain<float, Bytes>>(), float_row<Plain<double, Bytes>>(), bool_row<Bytes>()}},
      make_converts<Bytes, Element>(),
      {{widen_row<Element, Bytes>(), widen_row<BfloatElement, Bytes>()}},
      fetch<Bytes>};
}

}  // namespace
}  // namespace ringtune::device
