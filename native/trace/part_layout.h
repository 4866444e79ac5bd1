// What a part is made of on the disk: a header of 96 bytes and records of 48, all little-endian, appended only. A
// record is a span (trace/span.h), or says something that later records need. A file is valid up to any byte: a record,
// or a batch, that is not whole at its end counts as not written. timeline/README.md has the offsets.
//
// Texts stand between the spans, and not in a file of their own: a file that is followed, packed, rotated, sent or cut
// off by a full disk then never names a text that another file does not have yet.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "trace/span.h"

namespace ringtune {

static_assert(std::endian::native == std::endian::little);

struct PartFileHeader {
  std::array<char, 8> magic;
  std::uint32_t format;
  std::uint32_t record_bytes;
  std::int64_t unix_ns;  // both clocks at one moment
  std::int64_t monotonic_ns;
  std::int32_t rank;
  std::int32_t size;
  std::uint32_t file;  // number of the file among those of its rank
  std::uint32_t host;  // this and the next: numbers of texts
  std::uint32_t job;
  std::array<std::uint8_t, 44> unused;
};
static_assert(sizeof(PartFileHeader) == 2 * sizeof(Span));

inline constexpr std::array<char, 8> kPartMagic{'\x89', 'R', 'T', 'S', 'P', 'A', 'N', '\n'};
inline constexpr std::uint32_t kPartFormat = 2;

/// In the place of a stage; kCopiesIn, kCopiesOut, kBatch and kWords of span.h are the others. Heads are followed by as
/// many words as they need, 36 bytes a record.
inline constexpr auto kTextRecord = static_cast<Stage>(0xf7);     // head: text number `name_id` of `bytes` bytes
inline constexpr auto kEndRecord = static_cast<Stage>(0xf8);      // `begin_ns` spans recorded, `end_ns` dropped
inline constexpr auto kEventRecord = static_cast<Stage>(0xf9);    // head: RareEvent; `batch_id` is its category's text,
                                                                  // `bytes` the length of its arguments, which follow
inline constexpr auto kAboutRecord = static_cast<Stage>(0xfa);    // of the next span: `name_id` is its name's text,
                                                                  // `batch_id` that of its facts; 0: as usual
inline constexpr auto kTensorsRecord = static_cast<Stage>(0xfb);  // head: list number `name_id` of `batch_id` tensors,
                                                                  // 12 bytes each: text of the name, bytes

inline constexpr std::size_t kWordBytes = 36;
inline constexpr std::size_t kTensorsARecord = 3;

}  // namespace ringtune
