// Elements of all dtypes as the kernels compute on them: with the bits that the loops of native/device give on a CPU,
// but for the payload of a NaN, which a GPU does not keep.
//
// For NVRTC (no header of the standard library) and, in the tests, for a host compiler; `FOR_GPU` tells them apart.
#pragma once

#ifdef __CUDACC_RTC__
#define FOR_GPU 1
#else
#define FOR_GPU 0
#endif

namespace ringtune {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

template <typename To, typename From>
inline To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From), "a value has its bits");
  To as;
  memcpy(&as, &value, sizeof as);
  return as;
}

// An element says how it is stored, what it is computed as, and the way from one to the other.

/// As it lies in memory.
template <typename T>
struct Plain {
  using Stored = T;
  using Wide = T;
  static Wide widen(Stored value) { return value; }
  static Stored narrow(Wide value) { return value; }
};

struct Float16 {
  using Stored = u16;
  using Wide = float;
#if FOR_GPU
  static float widen(u16 half) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(half));
    return wide;
  }
  static u16 narrow(float value) {
    u16 half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return half;
  }
#else
  static float widen(u16 half) {
    _Float16 value;
    __builtin_memcpy(&value, &half, 2);
    return static_cast<float>(value);
  }
  static u16 narrow(float value) { return bits_as<u16>(static_cast<_Float16>(value)); }
#endif
};

struct Bfloat16 {
  using Stored = u16;
  using Wide = float;
  static float widen(u16 bits) { return bits_as<float>(static_cast<u32>(bits) << 16); }
  /// To nearest even; rounding could carry a NaN into the sign, so its quiet bit is set instead.
  static u16 narrow(float value) {
    const u32 bits = bits_as<u32>(value);
    const u32 rounded = bits + 0x7fffu + (bits >> 16 & 1u);
    return static_cast<u16>((value != value ? bits | 0x400000u : rounded) >> 16);
  }
};

// Sums and products of integers wrap around: computed on the unsigned twin.
template <typename T>
struct TwinOf {
  using Type = T;
};
template <>
struct TwinOf<signed char> {
  using Type = u8;
};
template <>
struct TwinOf<short> {
  using Type = u32;  // a product of two u16 would be computed as int, and overflow
};
template <>
struct TwinOf<int> {
  using Type = u32;
};
template <>
struct TwinOf<long long> {
  using Type = u64;
};

struct Sum {
  template <typename T>
  static T apply(T a, T b) {
    using Twin = typename TwinOf<T>::Type;
    return static_cast<T>(static_cast<Twin>(a) + static_cast<Twin>(b));
  }
};
struct Product {
  template <typename T>
  static T apply(T a, T b) {
    using Twin = typename TwinOf<T>::Type;
    return static_cast<T>(static_cast<Twin>(a) * static_cast<Twin>(b));
  }
};
// A NaN on either side wins: `a` when it is NaN, else the comparison is false and `b` is taken.
struct Min {
  template <typename T>
  static T apply(T a, T b) {
    return a < b || a != a ? a : b;
  }
};
struct Max {
  template <typename T>
  static T apply(T a, T b) {
    return a > b || a != a ? a : b;
  }
};
// On bytes that hold a bool.
struct Or {
  static u8 apply(u8 a, u8 b) { return (a | b) != 0; }
};
struct And {
  static u8 apply(u8 a, u8 b) { return a != 0 && b != 0; }
};

template <typename T>
struct Wider {
  using Type = float;
};
template <>
struct Wider<double> {
  using Type = double;
};
/// What a cast between two elements goes by way of: float64 when either side is, else float32.
template <typename A, typename B>
struct Between {
  using Type = decltype(typename Wider<A>::Type{} * typename Wider<B>::Type{});
};

/// Toward zero; out of range goes to the nearest end, NaN to 0.
template <typename T>
inline T truncate(double value) {
  constexpr bool kSigned = static_cast<T>(-1) < static_cast<T>(0);
  constexpr int kDigits = static_cast<int>(8 * sizeof(T)) - (kSigned ? 1 : 0);
  constexpr T kMost = static_cast<T>(~(kSigned ? u64{1} << kDigits : u64{0}));
  constexpr double kEnd = 2.0 * static_cast<double>(u64{1} << (kDigits - 1));
  constexpr double kLow = kSigned ? -kEnd : 0.0;
  const double number = value == value ? value : 0.0;
  if (number >= kEnd) return kMost;
  return static_cast<T>(number < kLow ? kLow : number);
}

}  // namespace ringtune
