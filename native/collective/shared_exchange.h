// Collectives through shared memory that give each member a result of its own: gathered blocks (a broadcast is a block
// of one member), exchanged rows, its part of a sum.
//
// Every member packs its data into its slots, piece by piece and one ahead, and takes its result from the slots of the
// others; its own share goes straight from the input to the output. Slots stay in the second-level caches, so memory
// sees one pass over the input and one over the output. Members may give different amounts: a member without further
// pieces goes on taking.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "collective/shm_round.h"

namespace ringtune {

/// The walk over the pieces, which all of them share.
class SharedExchange : public ShmRound {
 public:
  /// Call before finish().
  void deliver_to(std::byte* output) noexcept { output_ = output; }
  void finish() final;

 protected:
  explicit SharedExchange(ShmGroup& shm_group) : ShmRound(shm_group) {}

  /// How a round goes through the slots: the same for all members.
  struct Layout {
    std::size_t piece = 0;    // bytes of a slot in use
    std::size_t message = 0;  // bytes of the member that gives most; 0: not known to all
    bool in_turn = false;     // all give about equally much, so that slots of two members may alternate
  };
  /// What this member puts into its slots.
  struct SendLayout {
    std::size_t pieces = 0;
    std::size_t bytes = 0;
  };
  void post(std::uint64_t token, const Layout& layout, const SendLayout& send_layout);
  /// After agreement: how many pieces the member that gives most has.
  virtual std::size_t learn_pieces() = 0;
  virtual void pack(std::size_t piece, std::byte* slot) = 0;
  /// Takes this member's share of all members' pieces of that number, including its own.
  virtual void take(std::size_t piece) = 0;

  /// Blocks until that piece is there.
  [[nodiscard]] const std::byte* posted(int member, std::size_t piece);
  void to_slot(std::byte* slot, const std::byte* from, std::size_t bytes) const;
  void from_slot(std::byte* to, const std::byte* slot, std::size_t bytes) const;
  /// The place of a receiver's share in a giver's slot. Shares for others come first, so that of two members each
  /// writes where it has read; the giver's own share, which few collectives need, comes last.
  [[nodiscard]] std::size_t share_of(std::size_t giver, std::size_t receiver) const noexcept {
    return (receiver + members() - giver - 1) % members();
  }
  [[nodiscard]] std::size_t members() const noexcept { return static_cast<std::size_t>(group_.size()); }
  [[nodiscard]] std::size_t own() const noexcept { return static_cast<std::size_t>(group_.position()); }
  [[nodiscard]] bool streams() const noexcept { return streams_; }

  std::byte* output_ = nullptr;

 private:
  void pack_next();

  std::size_t own_pieces_ = 0;
  std::size_t pieces_ = 0;
  std::size_t packed_ = 0;
  bool streams_ = false;  // slots are written past the caches
  bool fetches_ = false;  // and others' slots are prefetched
};

/// Every member gets the blocks of all, in order.
class SharedGather final : public SharedExchange {
 public:
  /// `blocks`: bytes of each member's block, the same on all; `input`: the own one, which may lie at its place in the
  /// output.
  SharedGather(ShmGroup& shm_group, std::uint64_t token, std::vector<std::size_t> blocks, const std::byte* input);

 private:
  std::size_t learn_pieces() override { return pieces_; }
  void pack(std::size_t piece, std::byte* slot) override;
  void take(std::size_t piece) override;
  /// Bytes of a member's piece of that number.
  [[nodiscard]] std::size_t bytes_of(std::size_t member, std::size_t piece) const noexcept;

  std::vector<std::size_t> blocks_;
  const std::byte* input_;
  std::size_t piece_ = 0;
  std::size_t pieces_ = 0;
};

/// Every member gets rows from each member. Only the giver knows how many, so the first piece of each giver begins with
/// a table of its bytes.
class SharedAlltoall final : public SharedExchange {
 public:
  /// `sent`: bytes for each member, which follow one another in `input`. The output overlaps none of it.
  SharedAlltoall(ShmGroup& shm_group, std::uint64_t token, std::vector<std::size_t> sent, const std::byte* input);
  /// After agreement: bytes from each member, which are to follow one another in the output.
  [[nodiscard]] const std::vector<std::size_t>& received();

 private:
  std::size_t learn_pieces() override;
  void pack(std::size_t piece, std::byte* slot) override;
  void take(std::size_t piece) override;

  /// One member's bytes for each receiver in a piece, and how many pieces it gives.
  struct Given {
    std::size_t unit = 0;
    std::size_t pieces = 0;
  };
  [[nodiscard]] Given given(std::size_t unit, std::size_t member, std::span<const std::size_t> bytes) const noexcept;
  [[nodiscard]] std::size_t table_bytes() const noexcept;

  std::vector<std::size_t> sent_;
  const std::byte* input_;
  std::size_t unit_ = 0;
  std::vector<std::size_t> received_;  // empty: not read yet
  std::vector<Given> given_;           // by member
};

/// The input of a reducescatter.
struct Scatter {
  std::vector<std::size_t> parts;  // elements that each member gets, the same on all
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
};

/// Every member gets its part of the sum, reduced in the order of the members.
class SharedReducescatter final : public SharedExchange {
 public:
  /// `input`: the parts for all members, in order. The output has the size of the own part.
  SharedReducescatter(ShmGroup& shm_group, std::uint64_t token, Scatter scatter, const std::byte* input);

 private:
  std::size_t learn_pieces() override { return pieces_; }
  void pack(std::size_t piece, std::byte* slot) override;
  void take(std::size_t piece) override;
  /// Whether the own tensor holds the same bytes as the own slot would.
  [[nodiscard]] bool is_as_packed() const noexcept { return scatter_.prescale == 1.0; }
  /// Elements of a member's part in a piece.
  [[nodiscard]] std::size_t elements_of(std::size_t member, std::size_t piece) const noexcept;

  Scatter scatter_;
  std::vector<const std::byte*> inputs_;
  const std::byte* input_;
  std::size_t element_;    // bytes
  std::size_t unit_ = 1;   // elements of a part in a piece
  std::size_t begin_ = 0;  // element of the input where the own part begins
  std::size_t pieces_ = 0;
};

}  // namespace ringtune
