// The kernels of ringtune: tensors into a fusion buffer and back in one launch, reductions of two buffers, the dot
// products of Adasum and what it makes of two vectors. See core/README.md.
//
// A batch is a table of chunks of about equal size, so that every block has the same work however uneven the tensors
// are. Memory is told by its address and touched by `load` and `store` alone, and threads of a block meet only where
// BLOCK_PHASES says so: the tests run the same source on the CPU, one thread after the other.
#include "elements.cuh"

namespace ringtune {

constexpr u32 kThreads = 256;  // of every block; the launcher knows it as kBlockThreads

/// A part of a tensor: on its way from one place to another, or as the two operands of a dot product.
struct Chunk {
  u64 from;
  u64 to;
  u32 count;  // elements
  u32 tensor;
};

#if FOR_GPU
template <typename T>
inline T load(u64 address) {
  return *reinterpret_cast<const T*>(address);
}
template <typename T>
inline void store(u64 address, T value) {
  *reinterpret_cast<T*>(address) = value;
}
#define UNROLL _Pragma("unroll")
#define BLOCK_PHASES(phase, count) for (int phase = 0; phase < (count); ++phase, __syncthreads())
#endif

/// So many bytes at once: one instruction.
template <u32 Bytes>
struct Word;
template <>
struct Word<1> {
  u8 bits;
};
template <>
struct Word<2> {
  u16 bits;
};
template <>
struct Word<4> {
  u32 bits;
};
template <>
struct Word<8> {
  u64 bits;
};
template <>
struct alignas(16) Word<16> {
  u64 bits[2];
};

template <typename T, u32 Count>
struct Several {
  T at[Count];
};
template <typename T, u32 Count>
inline Several<T, Count> load_several(u64 address) {
  return bits_as<Several<T, Count>>(load<Word<Count * sizeof(T)>>(address));
}
template <typename T, u32 Count>
inline void store_several(u64 address, Several<T, Count> values) {
  store(address, bits_as<Word<Count * sizeof(T)>>(values));
}

/// put(i, fetch(i)) for all i below `count`; four are fetched before the first is put, so that a thread has as many
/// loads under way: the compiler cannot know that no put changes what is fetched next.
template <typename Fetch, typename Put>
inline void for_all(u32 count, Fetch fetch, Put put) {
  constexpr u32 kAtOnce = 4;
  u32 i = threadIdx.x;
  for (; i + (kAtOnce - 1) * kThreads < count; i += kAtOnce * kThreads) {
    decltype(fetch(i)) values[kAtOnce];
    UNROLL
    for (u32 k = 0; k < kAtOnce; ++k) values[k] = fetch(i + k * kThreads);
    UNROLL
    for (u32 k = 0; k < kAtOnce; ++k) put(i + k * kThreads, values[k]);
  }
  for (; i < count; i += kThreads) put(i, fetch(i));
}

constexpr u32 kNever = ~u32{0};

/// As for_all for the elements of `work`: in groups of work.kGroup from element `head` on, which is aligned, the others
/// one by one. kNever as the head: all of them.
template <typename Work>
inline void for_elements(u32 count, u32 head, const Work& work) {
  constexpr u32 kGroup = Work::kGroup;
  const auto singles = [&](u32 first, u32 end) {
    for_all(
        end - first, [&](u32 i) { return work.fetch_one(first + i); },
        [&](u32 i, auto value) { work.put_one(first + i, value); });
  };
  if (head >= count) return singles(0, count);
  const u32 groups = (count - head) / kGroup;
  singles(0, head);
  for_all(
      groups, [&](u32 i) { return work.fetch(head + i * kGroup); },
      [&](u32 i, auto values) { work.put(head + i * kGroup, values); });
  singles(head + groups * kGroup, count);
}

/// Elements before `address` is a multiple of `bytes`; kNever when none of them is.
template <typename T>
inline u32 before_aligned(u64 address, u32 bytes) {
  const u32 missing = static_cast<u32>(-address & (bytes - 1));
  return missing % sizeof(T) == 0 ? missing / static_cast<u32>(sizeof(T)) : kNever;
}

// ---- pack and unpack
// ----------------------------------------------------------------------------------------------------

template <u32 Bytes>
struct CopyWords {
  static constexpr u32 kGroup = Bytes;
  Word<Bytes> fetch(u32 i) const { return load<Word<Bytes>>(from + i); }
  void put(u32 i, Word<Bytes> word) const { store(to + i, word); }
  u8 fetch_one(u32 i) const { return load<u8>(from + i); }
  void put_one(u32 i, u8 byte) const { store(to + i, byte); }
  u64 from;
  u64 to;
};

template <u32 Bytes>
inline void copy_words(const Chunk& chunk) {
  for_elements(chunk.count, before_aligned<u8>(chunk.to, Bytes), CopyWords<Bytes>{chunk.from, chunk.to});
}

/// Of bytes, in the longest words whose borders both sides share.
inline void copy_chunk(const Chunk& chunk) {
  const u64 shift = chunk.from ^ chunk.to;
  if ((shift & 15) == 0) return copy_words<16>(chunk);
  if ((shift & 7) == 0) return copy_words<8>(chunk);
  if ((shift & 3) == 0) return copy_words<4>(chunk);
  if ((shift & 1) == 0) return copy_words<2>(chunk);
  copy_words<1>(chunk);
}

/// to[i] = from[i] * factor as convert_copy() does: by way of float64 when either side is, else of float32.
template <typename From, typename To>
struct Convert {
  using In = typename From::Stored;
  using Out = typename To::Stored;
  using Wide = typename Between<typename From::Wide, typename To::Wide>::Type;
  static constexpr u32 kGroup = 16 / (sizeof(In) > sizeof(Out) ? sizeof(In) : sizeof(Out));

  Out converted(In value) const {
    return To::narrow(static_cast<typename To::Wide>(static_cast<Wide>(From::widen(value)) * factor));
  }
  Several<In, kGroup> fetch(u32 i) const { return load_several<In, kGroup>(from + i * sizeof(In)); }
  void put(u32 i, Several<In, kGroup> in) const {
    Several<Out, kGroup> out;
    UNROLL
    for (u32 k = 0; k < kGroup; ++k) out.at[k] = converted(in.at[k]);
    store_several(to + i * sizeof(Out), out);
  }
  In fetch_one(u32 i) const { return load<In>(from + i * sizeof(In)); }
  void put_one(u32 i, In value) const { store(to + i * sizeof(Out), converted(value)); }

  u64 from;
  u64 to;
  Wide factor;
};

template <typename From, typename To>
inline void convert_chunk(const Chunk& chunk, double factor) {
  using Work = Convert<From, To>;
  using In = typename Work::In;
  using Out = typename Work::Out;
  u32 head = before_aligned<Out>(chunk.to, Work::kGroup * sizeof(Out));
  if (head != kNever && (chunk.from + head * sizeof(In)) % (Work::kGroup * sizeof(In)) != 0) head = kNever;
  for_elements(chunk.count, head, Work{chunk.from, chunk.to, static_cast<typename Work::Wide>(factor)});
}

/// Integers times a factor, by way of float64.
template <typename T>
inline void scale_chunk(const Chunk& chunk, double factor) {
  for_all(
      chunk.count, [&](u32 i) { return load<T>(chunk.from + i * sizeof(T)); },
      [&](u32 i, T value) { store(chunk.to + i * sizeof(T), truncate<T>(static_cast<double>(value) * factor)); });
}

template <typename Act>
inline void for_each_chunk(u64 chunks, u32 count, Act act) {
  for (u32 i = blockIdx.x; i < count; i += gridDim.x) act(load<Chunk>(chunks + i * sizeof(Chunk)));
}

// ---- reduce
// -------------------------------------------------------------------------------------------------------------

struct Operands {
  u64 out;
  u64 a;
  u64 b;
  u64 count;  // elements
};

constexpr u32 kReducedAtOnce = 4096;  // elements of a block's turn; the launcher knows it as kReducedElements

/// out[i] = op(a[i], b[i]); out may be a or b. The 16-bit types in float32, rounded once.
template <typename Element, typename Op>
struct Reduce {
  using T = typename Element::Stored;
  static constexpr u32 kGroup = 16 / sizeof(T);
  template <u32 Count>
  struct Pair {
    Several<T, Count> a;
    Several<T, Count> b;
  };
  template <u32 Count>
  Pair<Count> pair(u32 i) const {
    return {load_several<T, Count>(a + i * sizeof(T)), load_several<T, Count>(b + i * sizeof(T))};
  }
  template <u32 Count>
  void put_pair(u32 i, const Pair<Count>& pair) const {
    Several<T, Count> sum;
    UNROLL
    for (u32 k = 0; k < Count; ++k) {
      sum.at[k] = Element::narrow(op.apply(Element::widen(pair.a.at[k]), Element::widen(pair.b.at[k])));
    }
    store_several(out + i * sizeof(T), sum);
  }
  Pair<kGroup> fetch(u32 i) const { return pair<kGroup>(i); }
  void put(u32 i, const Pair<kGroup>& values) const { put_pair(i, values); }
  Pair<1> fetch_one(u32 i) const { return pair<1>(i); }
  void put_one(u32 i, const Pair<1>& value) const { put_pair(i, value); }

  u64 out;
  u64 a;
  u64 b;
  Op op;
};

template <typename Element, typename Op>
inline void reduce_all(const Operands& what, Op op) {
  using T = typename Element::Stored;
  const u32 turns = static_cast<u32>((what.count + kReducedAtOnce - 1) / kReducedAtOnce);
  for (u32 turn = blockIdx.x; turn < turns; turn += gridDim.x) {
    const u64 first = u64{turn} * kReducedAtOnce;
    const u64 left = what.count - first;
    const u64 at = first * sizeof(T);
    const Reduce<Element, Op> work{what.out + at, what.a + at, what.b + at, op};
    const bool aligned_alike = ((work.out ^ work.a) & 15) == 0 && ((work.out ^ work.b) & 15) == 0;
    for_elements(left < kReducedAtOnce ? static_cast<u32>(left) : kReducedAtOnce,
                 aligned_alike ? before_aligned<T>(work.out, 16) : kNever, work);
  }
}

// ---- Adasum
// -------------------------------------------------------------------------------------------------------------

struct Dots {
  double ab;
  double aa;
  double bb;
};

struct DotsOfThreads {
  Dots at[kThreads];
};

constexpr int kTreePhases = 8;  // 2^8 threads

/// One level of the tree over the threads of a block: the same order of additions always.
inline void tree_level(DotsOfThreads& dots, int level) {
  const u32 half = kThreads >> (level + 1);
  if (threadIdx.x >= half) return;
  Dots& mine = dots.at[threadIdx.x];
  const Dots& other = dots.at[threadIdx.x + half];
  mine.ab += other.ab;
  mine.aa += other.aa;
  mine.bb += other.bb;
}

/// The thread's share of parts[first] to parts[end].
inline Dots sum_of_parts(u64 parts, u32 first, u32 end) {
  Dots dots{0, 0, 0};
  for (u32 i = first + threadIdx.x; i < end; i += kThreads) {
    const Dots part = load<Dots>(parts + i * sizeof(Dots));
    dots.ab += part.ab;
    dots.aa += part.aa;
    dots.bb += part.bb;
  }
  return dots;
}

template <typename T>
struct TwoOf {
  T a;
  T b;
};

/// A chunk's products into parts[chunk], one block each.
template <typename Element>
inline void dots_of_chunk(u64 chunks, u64 parts, DotsOfThreads& shared) {
  using T = typename Element::Stored;
  BLOCK_PHASES(phase, kTreePhases + 2) {
    if (phase == 0) {
      const Chunk chunk = load<Chunk>(chunks + blockIdx.x * sizeof(Chunk));
      Dots dots{0, 0, 0};
      for_all(
          chunk.count,
          [&](u32 i) { return TwoOf<T>{load<T>(chunk.from + i * sizeof(T)), load<T>(chunk.to + i * sizeof(T))}; },
          [&](u32, const TwoOf<T>& two) {
            const double a = static_cast<double>(Element::widen(two.a));
            const double b = static_cast<double>(Element::widen(two.b));
            dots.ab += a * b;
            dots.aa += a * a;
            dots.bb += b * b;
          });
      shared.at[threadIdx.x] = dots;
    } else if (phase <= kTreePhases) {
      tree_level(shared, phase - 1);
    } else if (threadIdx.x == 0) {
      store(parts + blockIdx.x * sizeof(Dots), shared.at[0]);
    }
  }
}

/// A tensor's products, those of its chunks in a row from first[tensor] to first[tensor + 1]; one block each.
inline void dots_of_tensor(u64 parts, u64 first, u64 totals, DotsOfThreads& shared) {
  BLOCK_PHASES(phase, kTreePhases + 2) {
    if (phase == 0) {
      shared.at[threadIdx.x] = sum_of_parts(parts, load<u32>(first + blockIdx.x * sizeof(u32)),
                                            load<u32>(first + (blockIdx.x + 1) * sizeof(u32)));
    } else if (phase <= kTreePhases) {
      tree_level(shared, phase - 1);
    } else if (threadIdx.x == 0) {
      store(totals + blockIdx.x * sizeof(Dots), shared.at[0]);
    }
  }
}

/// Half the projection on the other vector is taken away; a zero vector has none.
inline double factor_of(double dot, double square) { return square > 0 ? 1.0 - dot / (2.0 * square) : 1.0; }

template <typename T>
struct WeightedSum {
  T apply(T x, T y) const { return a * x + b * y; }
  T a;
  T b;
};

/// Two vectors become one. Their products are the sum of so many parts; every block adds them up, in the same order.
template <typename Element>
inline void combine(const Operands& what, u64 parts, u32 count, DotsOfThreads& shared) {
  using Wide = typename Element::Wide;
  BLOCK_PHASES(phase, kTreePhases + 2) {
    if (phase == 0) {
      shared.at[threadIdx.x] = sum_of_parts(parts, 0, count);
    } else if (phase <= kTreePhases) {
      tree_level(shared, phase - 1);
    } else {
      const Dots dots = shared.at[0];
      reduce_all<Element>(what, WeightedSum<Wide>{static_cast<Wide>(factor_of(dots.ab, dots.aa)),
                                                  static_cast<Wide>(factor_of(dots.ab, dots.bb))});
    }
  }
}

}  // namespace ringtune

#include "kernel_list.cuh"
