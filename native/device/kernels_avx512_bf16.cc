// bfloat16 for AVX-512 with AVX512_BF16.
#if defined(__x86_64__)

#include <immintrin.h>

#include <limits>
#include <type_traits>

#include "device/kernel_table.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c,avx512bf16"))), \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,f16c,avx512bf16")
#endif

#include "device/blocks_avx512.h"

namespace ringtune::device {
namespace {

/// The conversion of AVX512_BF16 rounds to nearest even and keeps a NaN, but takes a subnormal float32 for zero.
struct NativeBfloat : BfloatPairs<64> {
  [[gnu::always_inline]] static __m512i store(std::byte* at, Value value) noexcept {
    constexpr int kSubnormal = 0x20;
    const __mmask16 low = _mm512_fpclass_ps_mask(value.low, kSubnormal);
    const __mmask16 high = _mm512_fpclass_ps_mask(value.high, kSubnormal);
    if (__builtin_expect(!_kortestz_mask16_u8(low, high), 0)) {
      return __builtin_bit_cast(__m512i, BfloatPairs<64>::store(at, value));
    }
    alignas(64) static constexpr std::uint16_t kInterleave[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                                  21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                                  11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i packed = __builtin_bit_cast(__m512i, _mm512_cvtne2ps_pbh(value.high, value.low));
    const __m512i both = _mm512_maskz_permutexvar_epi16(~__mmask32{0}, _mm512_load_si512(kInterleave), packed);
    _mm512_storeu_si512(at, both);
    return both;
  }
};

}  // namespace

const ReduceRow kAvx512Bf16Row = float_row<NativeBfloat>();

}  // namespace ringtune::device

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif  // x86-64
