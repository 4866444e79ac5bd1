// Which way tensors on GPUs go: on the wire, and where ranks part.
#include <gtest/gtest.h>

#include "base/error.h"
#include "control/request.h"
#include "thrown.h"

namespace ringtune {
namespace {

using testing_support::message_of;

Request on_gpu(DataPath data_path) {
  Request request;
  request.name = "t";
  request.shape = {3};
  request.place = 1;
  request.data_path = data_path;
  return request;
}

TEST(DataPath, TravelsWithARequestOfATensorOnAGpu) {
  for (const DataPath data_path : {DataPath::kStaged, DataPath::kNccl, DataPath::kRing, DataPath::kHierarchical,
                                   DataPath::kAcross, DataPath::kNcclPacked}) {
    ByteWriter out;
    write_request(out, on_gpu(data_path));
    ByteReader in(out.bytes());
    EXPECT_EQ(read_request(in), on_gpu(data_path));
  }
}

TEST(DataPath, OneThatIsUnknownIsRefused) {
  ByteWriter out;
  write_request(out, on_gpu(static_cast<DataPath>(9)));
  ByteReader in(out.bytes());
  EXPECT_EQ(message_of<Protocol>([&] { (void)read_request(in); }),
            "a peer submitted tensor 't' to take the unknown data path 9");
}

TEST(DataPath, RanksThatPartAreNamedAndAreNoMismatch) {
  std::vector<Variant> variants;
  add_variant(variants, std::make_shared<const Request>(on_gpu(DataPath::kNccl)), RankSet::range(0, 3));
  EXPECT_FALSE(find_parting(variants).has_value());
  add_variant(variants, std::make_shared<const Request>(on_gpu(DataPath::kStaged)), RankSet::one(3));
  EXPECT_EQ(find_mismatch(variants), std::nullopt);
  std::optional<Parting> parting = find_parting(variants);
  ASSERT_TRUE(parting.has_value());
  EXPECT_EQ(parting->refused, DataPath::kNccl);
  EXPECT_EQ(
      parting->message,
      "tensor 't' would go by NCCL on ranks 0-2, and through the host on rank 3. NCCL needs all of them: the same "
      "RINGTUNE_GPU_DATA_PATH, NCCL on every host, and a GPU for each rank.");
  variants.clear();
  add_variant(variants, std::make_shared<const Request>(on_gpu(DataPath::kHierarchical)), RankSet::range(0, 2));
  add_variant(variants, std::make_shared<const Request>(on_gpu(DataPath::kRing)), RankSet::one(2));
  parting = find_parting(variants);
  ASSERT_TRUE(parting.has_value());
  EXPECT_EQ(parting->refused, DataPath::kHierarchical);
  EXPECT_EQ(parting->message.find("tensor 't' would go by NCCL within hosts on ranks 0, 1, and by ringtune's ring on "
                                  "rank 2. NCCL needs all of them"),
            0U)
      << parting->message;
  variants.clear();
  add_variant(variants, std::make_shared<const Request>(on_gpu(DataPath::kRing)), RankSet::range(0, 2));
  add_variant(variants, std::make_shared<const Request>(on_gpu(DataPath::kStaged)), RankSet::one(2));
  parting = find_parting(variants);
  ASSERT_TRUE(parting.has_value());
  EXPECT_EQ(parting->refused, DataPath::kRing);
  EXPECT_EQ(
      parting->message,
      "tensor 't' would go by ringtune's ring on ranks 0, 1, and through the host on rank 2. The ring needs all of "
      "them: the same RINGTUNE_GPU_DATA_PATH, and NVRTC for its kernels on every rank.");
}

TEST(DataPath, PackedByNcclIsAWayOfItsOwnBetweenNcclAndTheOthers) {
  for (const DataPath other : {DataPath::kHierarchical, DataPath::kRing, DataPath::kStaged}) {
    std::vector<Variant> variants;
    add_variant(variants, std::make_shared<const Request>(on_gpu(DataPath::kNcclPacked)), RankSet::one(0));
    add_variant(variants, std::make_shared<const Request>(on_gpu(other)), RankSet::one(1));
    const std::optional<Parting> parting = find_parting(variants);
    ASSERT_TRUE(parting.has_value());
    EXPECT_EQ(parting->refused, DataPath::kNcclPacked);
    EXPECT_EQ(
        parting->message,
        "tensor 't' would go packed by NCCL on rank 0, and " + std::string(text_of(other)) +
            " on rank 1. NCCL needs all of them: the same RINGTUNE_GPU_DATA_PATH, NCCL on every host, and a GPU for "
            "each rank. What is packed also needs NVRTC for ringtune's kernels on every rank.");
  }
}

TEST(DataPath, RanksThatUseTheirGpusInAnotherOrderPart) {
  std::vector<Variant> variants;
  Request second = on_gpu(DataPath::kNccl);
  second.place = 2;
  add_variant(variants, std::make_shared<const Request>(on_gpu(DataPath::kNccl)), RankSet::one(0));
  add_variant(variants, std::make_shared<const Request>(second), RankSet::one(1));
  EXPECT_EQ(find_mismatch(variants), std::nullopt);
  const std::optional<Parting> parting = find_parting(variants);
  ASSERT_TRUE(parting.has_value());
  EXPECT_EQ(parting->refused, DataPath::kNccl);
  EXPECT_EQ(
      parting->message,
      "tensor 't' would go by NCCL on rank 0, and by NCCL from GPU number 2 of those used on rank 1. NCCL needs all "
      "of them: the same RINGTUNE_GPU_DATA_PATH, NCCL on every host, and a GPU for each rank. Ranks with several GPUs "
      "must come to use them in the same order.");
  for (Variant& variant : variants) {
    Request staged = *variant.request;
    staged.data_path = DataPath::kStaged;
    variant.request = std::make_shared<const Request>(staged);
  }
  EXPECT_FALSE(find_parting(variants).has_value()) << "through the host the number does not matter";
}

}  // namespace
}  // namespace ringtune
