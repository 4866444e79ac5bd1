// The copies between the tensors of a batch and the buffer in which it is reduced: whole tensors, or any range of the
// buffer while the collective runs.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "collective/pack_pipeline.h"
#include "runtime/operation.h"

namespace ringtune {

/// Borrows the operations and the buffer. One thread at a time.
class BatchCopies final : public PackPipeline {
 public:
  /// From here on copies in ranges pay: the first segment travels while the others are still to be copied.
  static constexpr std::size_t kWorthStaging = 512 << 10;

  /// Lays out a batch among `size` ranks; returns the bytes of the buffer that it needs.
  std::size_t lay_out(std::span<const OperationPtr> batch, int size);
  /// The same for one tensor, which is reduced where its result belongs: that is the buffer.
  void lay_in_place(Operation& operation, int size);
  void use(std::span<std::byte> buffer) noexcept { buffer_ = buffer; }
  [[nodiscard]] std::span<std::byte> buffer() const noexcept { return buffer_; }

  [[nodiscard]] std::size_t tensors() const noexcept { return places_.size(); }
  [[nodiscard]] const Operation& operation(std::size_t index) const noexcept { return *places_[index].operation; }
  void copy_in(std::size_t index);
  void copy_out(std::size_t index);

  void stage_in(ChunkRange range) override;
  /// In place nothing: a result must be passed on before it is scaled.
  void stage_out(ChunkRange range) override;
  /// What a collective that is done has left.
  void stage_out_rest();

 private:
  struct Place {
    const Operation* operation;
    std::size_t begin;   // in the buffer
    std::size_t bytes;   // of the tensor as it travels
    std::size_t padded;  // to the next one
    double postscale;
  };
  void take_out(ChunkRange range);
  [[nodiscard]] Place place_of(const Operation& operation, std::size_t begin, int size) const noexcept;
  void copy_in(const Place& place, std::size_t begin, std::size_t end);
  void copy_out(const Place& place, std::size_t begin, std::size_t end);
  /// Calls `visit(place, begin, end)` for what of each tensor lies in the range, relative to the tensor.
  template <typename Visit>
  void walk(ChunkRange range, Visit&& visit);

  DType wire_ = DType::kFloat32;
  DType dtype_ = DType::kFloat32;
  std::vector<Place> places_;
  std::span<std::byte> buffer_;
  std::size_t total_ = 0;
  bool in_place_ = false;
  std::vector<ChunkRange> taken_;  // staged out; neighbours in time that are neighbours in the buffer are one
};

}  // namespace ringtune
