#include "control/request.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"

namespace ringtune {
namespace {

Request base(CollectiveKind kind) {
  Request request;
  request.name = "t";
  request.kind = kind;
  request.shape = {2, 3};
  return request;
}

struct MismatchCase {
  const char* name;
  CollectiveKind kind;
  std::function<void(Request&)> change;  // what rank 1 of 3 does otherwise
  const char* message;                   // empty: no mismatch
};
void PrintTo(const MismatchCase& c, std::ostream* out) { *out << c.name; }

class RequestMismatch : public testing::TestWithParam<MismatchCase> {};

TEST_P(RequestMismatch, IsNamedWithRanksAndValues) {
  const auto same = std::make_shared<Request>(base(GetParam().kind));
  const auto odd = std::make_shared<Request>(*same);
  GetParam().change(*odd);
  const std::vector<Variant> variants{{odd, RankSet::one(1)}, {same, RankSet::of(std::vector<std::int32_t>{0, 2})}};
  EXPECT_EQ(find_mismatch(variants).value_or(""), GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Table, RequestMismatch,
    testing::Values(
        MismatchCase{"equal", CollectiveKind::kAllreduce, [](Request&) {}, ""},
        MismatchCase{"dtype", CollectiveKind::kAllreduce, [](Request& r) { r.dtype = DType::kInt32; },
                     "Mismatched data types: One rank had type float32, but another rank had type int32. Tensor 't': "
                     "type float32 on ranks 0, 2; type int32 on rank 1. Submit the same dtype on every rank."},
        MismatchCase{
            "shape", CollectiveKind::kAllreduce, [](Request& r) { r.shape = {3, 2}; },
            "Mismatched ALLREDUCE tensor shapes: One rank had shape [2, 3], but another rank had shape [3, 2]. "
            "Tensor 't': shape [2, 3] on ranks 0, 2; shape [3, 2] on rank 1. Submit the same shape on every "
            "rank."},
        MismatchCase{"operation", CollectiveKind::kAllreduce, [](Request& r) { r.kind = CollectiveKind::kBroadcast; },
                     "Mismatched operations: One rank had an ALLREDUCE, but another rank had an BROADCAST. Tensor 't': "
                     "an ALLREDUCE on ranks 0, 2; an BROADCAST on rank 1. Call the same collective on every rank."},
        MismatchCase{"reduction", CollectiveKind::kAllreduce, [](Request& r) { r.op = ReduceOp::kMin; },
                     "Mismatched reduction operation: One rank had reduction op Sum, but another rank had reduction op "
                     "Min. Tensor 't': reduction op Sum on ranks 0, 2; reduction op Min on rank 1. Use the same op on "
                     "every rank."},
        MismatchCase{"factors", CollectiveKind::kAllreduce, [](Request& r) { r.prescale = 0.5; },
                     "Mismatched prescale and/or postscale factors: One rank had factors 1 and 1, but another rank had "
                     "factors 0.5 and 1. Tensor 't': factors 1 and 1 on ranks 0, 2; factors 0.5 and 1 on rank 1. Use "
                     "the same factors on every rank."},
        MismatchCase{"compression", CollectiveKind::kAllreduce, [](Request& r) { r.wire = DType::kBfloat16; },
                     "Mismatched compression: One rank had float32 on the wire, but another rank had bfloat16 on the "
                     "wire. Tensor 't': float32 on the wire on ranks 0, 2; bfloat16 on the wire on rank 1. Use the "
                     "same compression on every rank."},
        MismatchCase{"root", CollectiveKind::kBroadcast, [](Request& r) { r.root = 2; },
                     "Mismatched BROADCAST root ranks: One rank had root rank 0, but another rank had root rank 2. "
                     "Tensor 't': root rank 0 on ranks 0, 2; root rank 2 on rank 1. Name the same root on every rank."},
        MismatchCase{"group", CollectiveKind::kAllreduce,
                     [](Request& r) {
                       r.group = "g";
                       r.group_size = 2;
                     },
                     "Mismatched groups: One rank had no group, but another rank had group 'g' of 2. Tensor 't': no "
                     "group on ranks 0, 2; group 'g' of 2 on rank 1. Submit the same group of tensors on every rank."},
        MismatchCase{"allgather_rows_may_differ", CollectiveKind::kAllgather, [](Request& r) { r.shape[0] = 9; }, ""},
        MismatchCase{
            "allgather_columns_may_not", CollectiveKind::kAllgather, [](Request& r) { r.shape[1] = 9; },
            "Mismatched ALLGATHER tensor shapes: One rank had shape [*, 3], but another rank had shape [*, 9]. "
            "Tensor 't': shape [*, 3] on ranks 0, 2; shape [*, 9] on rank 1. Only the first dimension may "
            "differ."},
        MismatchCase{"barriers_have_no_shape", CollectiveKind::kBarrier, [](Request& r) { r.shape = {}; }, ""}),
    [](const auto& row) { return std::string(row.param.name); });

TEST(RankList, JoinsRuns) {
  EXPECT_EQ(rank_list({}), "");
  EXPECT_EQ(rank_list(std::vector<int>{3}), "3");
  EXPECT_EQ(rank_list(std::vector<int>{0, 1, 3, 4, 5, 9}), "0, 1, 3-5, 9");
}

TEST(RequestWire, TravelsWithItAndIsCheckedOnArrival) {
  Request request = base(CollectiveKind::kAllreduce);
  request.wire = DType::kFloat16;
  const auto travelled = [](const Request& one) {
    ByteWriter out;
    write_request(out, one);
    ByteReader in(out.bytes());
    return read_request(in);
  };
  EXPECT_EQ(travelled(request), request);
  request.wire.reset();
  EXPECT_EQ(travelled(request), request);
  for (const DType wire : {DType::kFloat32, DType::kInt16, DType::kFloat64}) {
    request.wire = wire;
    EXPECT_THROW(travelled(request), Protocol);
  }
  request.wire = DType::kFloat16;
  request.dtype = DType::kInt32;
  EXPECT_THROW(travelled(request), Protocol);
  request.dtype = DType::kFloat32;
  request.kind = CollectiveKind::kBroadcast;
  EXPECT_THROW(travelled(request), Protocol);
}

TEST(RequestContribution, TravelsWithTheKindAndOnlyWhereThereAreNoElements) {
  const auto bytes_of = [](const Request& one) {
    ByteWriter out;
    write_request(out, one);
    return Bytes(out.bytes().begin(), out.bytes().end());
  };
  const auto travelled = [&](const Request& one) {
    const Bytes bytes = bytes_of(one);
    ByteReader in(bytes);
    return read_request(in);
  };
  Request request = base(CollectiveKind::kAllreduce);
  request.shape = {3, 0};
  request.timeout_ns = 5'000'000'000'000;
  const std::size_t plain = bytes_of(request).size();
  for (const std::uint8_t place : {std::uint8_t{0}, std::uint8_t{2}}) {
    request.place = place;
    for (const Contribution contribution : {Contribution::kDense, Contribution::kNone, Contribution::kSparse}) {
      request.contribution = contribution;
      EXPECT_EQ(travelled(request), request);
      if (place == 0) {
        EXPECT_EQ(bytes_of(request).size(), plain);
      }
    }
  }
  request.place = 0;
  for (const Contribution contribution : {Contribution::kNone, Contribution::kSparse}) {
    request.contribution = contribution;
    for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{}, {1}, {2, 3}}) {
      request.shape = shape;
      EXPECT_THROW(travelled(request), Protocol) << "it has elements";
    }
    request.shape = {0};
    for (std::uint8_t kind = 1; kind <= static_cast<std::uint8_t>(kLastCollectiveKind); ++kind) {
      request.kind = static_cast<CollectiveKind>(kind);
      EXPECT_THROW(travelled(request), Protocol) << name_of(request.kind);
    }
    request.kind = CollectiveKind::kAllreduce;
  }
  Bytes both = bytes_of(request);
  both[4 + request.name.size()] |= std::byte{64 | 32};
  ByteReader in(both);
  EXPECT_THROW((void)read_request(in), Protocol) << "no gradient, and a sparse one";
  request.contribution = Contribution::kDense;
  request.timeout_ns = -1;
  EXPECT_THROW(travelled(request), Protocol);
}

TEST(RequestUneven, NamesWhoHasWhatAndWhatAllAreToSubmit) {
  const auto has = [](Contribution contribution, const std::vector<std::int32_t>& ranks) {
    const auto request = std::make_shared<Request>(base(CollectiveKind::kAllreduce));
    request->contribution = contribution;
    return Variant{request, RankSet::of(ranks)};
  };
  using enum Contribution;
  EXPECT_FALSE(find_uneven(std::vector{has(kDense, {0, 1})}));
  EXPECT_FALSE(find_uneven(std::vector{has(kDense, {0}), has(kDense, {1})})) << "however they differ otherwise";
  EXPECT_FALSE(find_uneven(std::vector{has(kNone, {0}), has(kNone, {1})}));
  const auto absent = find_uneven(std::vector{has(kDense, {1, 2, 5}), has(kNone, {0, 3}), has(kDense, {4})});
  ASSERT_TRUE(absent);
  EXPECT_EQ(absent->contribution, kNone);
  EXPECT_EQ(absent->message, "tensor 't' has no gradient on ranks 0, 3, and a dense gradient on ranks 1, 2, 4, 5");
  const auto sparse = find_uneven(std::vector{has(kNone, {2}), has(kSparse, {0}), has(kNone, {1})});
  ASSERT_TRUE(sparse);
  EXPECT_EQ(sparse->contribution, kSparse);
  EXPECT_EQ(sparse->message, "tensor 't' has a sparse gradient on rank 0, and no gradient on ranks 1, 2");
}

TEST(RequestDevice, TravelsAndCostsAHostTensorNothing) {
  Request request = base(CollectiveKind::kAllreduce);
  const auto bytes_of = [](const Request& one) {
    ByteWriter out;
    write_request(out, one);
    return Bytes(out.bytes().begin(), out.bytes().end());
  };
  const std::size_t plain = bytes_of(request).size();
  request.place = 2;
  request.data_path = DataPath::kNccl;
  request.whole = {4, 5};
  Bytes bytes = bytes_of(request);
  EXPECT_EQ(bytes.size(), plain + 2 + 4 + 16);
  ByteReader in(bytes);
  EXPECT_EQ(read_request(in), request);
  Bytes other = bytes;
  other[plain + 1] = std::byte{99};
  ByteReader unknown_way(other);
  EXPECT_THROW((void)read_request(unknown_way), Protocol);
  bytes[plain] = std::byte{0};
  ByteReader without_number(bytes);
  EXPECT_THROW((void)read_request(without_number), Protocol);
  bytes.resize(bytes.size() - 1);
  bytes[plain] = std::byte{2};
  ByteReader cut(bytes);
  EXPECT_THROW((void)read_request(cut), Protocol);
}

TEST(RequestDevice, RanksMayUseDevicesOfDifferentNumbersButNotTheCpu) {
  const auto first = std::make_shared<Request>(base(CollectiveKind::kAllreduce));
  first->place = 1;
  const auto second = std::make_shared<Request>(*first);
  second->place = 2;
  std::vector<Variant> variants{{first, RankSet::one(0)}, {second, RankSet::one(1)}};
  EXPECT_EQ(find_mismatch(variants), std::nullopt);
  second->place = 0;
  EXPECT_EQ(find_mismatch(variants).value_or("").find("Mismatched ALLREDUCE CPU/GPU device selection"), 0U);
}

TEST(RequestDevice, PartsAreComparedAsTheWholeTensors) {
  const auto first = std::make_shared<Request>(base(CollectiveKind::kAllreduce));
  first->place = 1;
  first->whole = {2, 3, 5};
  const auto second = std::make_shared<Request>(*first);
  second->whole = {3, 2, 5};
  const std::vector<Variant> variants{{first, RankSet::one(0)}, {second, RankSet::one(1)}};
  EXPECT_NE(find_mismatch(variants).value_or("").find("One rank had shape [2, 3, 5], but another rank had shape "
                                                      "[3, 2, 5]"),
            std::string::npos);
}

TEST(RequestSize, CountsElementsAndBytes) {
  Request request = base(CollectiveKind::kAllreduce);
  EXPECT_EQ(element_count(request), 6u);
  EXPECT_EQ(byte_count(request), 24u);
  request.shape = {};
  EXPECT_EQ(element_count(request), 1u);
  request.shape = {4, 0};
  EXPECT_EQ(byte_count(request), 0u);
  request.shape = {3, 5};
  EXPECT_EQ(wire_byte_count(request), 60u);
  request.wire = DType::kFloat16;
  EXPECT_EQ(byte_count(request), 60u);
  EXPECT_EQ(wire_byte_count(request), 30u);
}

}  // namespace
}  // namespace ringtune
