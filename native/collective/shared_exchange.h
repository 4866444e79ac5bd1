// Collectives through shared memory of which each member gets something of its own: gathered blocks (a broadcast is a
// block of one member), exchanged rows, its part of a sum.
//
// Every member packs what it gives into its slots, piece by piece and one ahead, and takes from the slots of the others
// what it is to get; its own share goes straight from the input to the output. What goes through the slots stays in the
// second-level caches, so memory sees one pass over the input and one over the output. Members need not give equally
// much: who has no more pieces goes on taking.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "collective/shm_round.h"

namespace ringtune {

/// What all of them do: the walk over the pieces.
class SharedExchange : public ShmRound {
 public:
  /// Before finish().
  void deliver_to(std::byte* output) noexcept { output_ = output; }
  void finish() final;

 protected:
  explicit SharedExchange(ShmGroup& shm_group) : ShmRound(shm_group) {}

  /// How a round goes through the slots: the same for all members.
  struct Layout {
    std::size_t piece = 0;    // bytes of a slot in use
    std::size_t message = 0;  // what the member that gives most puts into them in all; 0: not known to all
    bool in_turn = false;     // all give about equally much: of two, each writes where it has read last
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
  /// Everything that is to be had of all members' pieces of this number, the own one too.
  virtual void take(std::size_t piece) = 0;

  /// Blocks until that piece is there.
  [[nodiscard]] const std::byte* posted(int member, std::size_t piece);
  void to_slot(std::byte* slot, const std::byte* from, std::size_t bytes) const;
  void from_slot(std::byte* to, const std::byte* slot, std::size_t bytes) const;
  /// Which share of a slot is whose, by what is written for others: so of two each writes where it has read, and the
  /// own share, which few need, comes last.
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
  bool fetches_ = false;  // and read from another core's
};

/// Every member gets the blocks of all, in order.
class SharedGather final : public SharedExchange {
 public:
  /// `blocks`: bytes of each member's, the same on all; `input`: the own one.
  /// It may lie in its place in the output already.
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

/// Every member gets from each what that has for it. How much that is is known to who gives it alone: the first piece
/// of each begins with a table of it.
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

  /// Of one member: bytes for each receiver in a piece, and how many pieces it gives.
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

/// What every member gives to a reduce-scatter.
struct Scatter {
  std::vector<std::size_t> parts;  // elements that each member gets, the same on all
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
};

/// Every member gets its part of what all give, reduced in the order of the members.
class SharedReducescatter final : public SharedExchange {
 public:
  /// `input`: the parts for all members, in order. The output is of the own one.
  SharedReducescatter(ShmGroup& shm_group, std::uint64_t token, Scatter scatter, const std::byte* input);

 private:
  std::size_t learn_pieces() override { return pieces_; }
  void pack(std::size_t piece, std::byte* slot) override;
  void take(std::size_t piece) override;
  /// The own tensor holds the same bytes as the own slot would.
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
