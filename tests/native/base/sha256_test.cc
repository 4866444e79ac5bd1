#include "base/sha256.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace ringtune {
namespace {

ByteView view(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string hex(ByteView bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    text += kDigits[std::to_integer<std::size_t>(byte >> 4)];
    text += kDigits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  return text;
}

TEST(Sha256Test, TheVectorsOfTheStandard) {  // FIPS 180-4, examples of NIST
  EXPECT_EQ(hex(Sha256().finish()), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(Sha256().add(view("abc")).finish()),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(Sha256().add(view("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")).finish()),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex(Sha256().add(view(std::string(1'000'000, 'a'))).finish()),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256Test, PiecesAreAsGoodAsTheWhole) {
  const std::string text(300, 'x');
  const Digest whole = Sha256().add(view(text)).finish();
  for (std::size_t first = 0; first <= text.size(); ++first) {
    EXPECT_EQ(Sha256().add(view(text.substr(0, first))).add(view(text.substr(first))).finish(), whole) << first;
  }
}

TEST(HmacTest, TheVectorsOfRfc4231) {
  EXPECT_EQ(hex(hmac_sha256(view(std::string(20, '\x0b')), view("Hi There"))),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex(hmac_sha256(view("Jefe"), view("what do ya want for nothing?"))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(
      hex(hmac_sha256(view(std::string(131, '\xaa')), view("Test Using Larger Than Block-Size Key - Hash Key First"))),
      "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(SameDigestTest, OneBitIsADifference) {
  const Digest digest = Sha256().finish();
  EXPECT_TRUE(same_digest(digest, digest));
  for (std::size_t byte = 0; byte < digest.size(); ++byte) {
    Digest other = digest;
    other[byte] ^= std::byte{1};
    EXPECT_FALSE(same_digest(digest, other));
  }
  EXPECT_FALSE(same_digest(digest, std::span(digest).first(31)));
}

}  // namespace
}  // namespace ringtune
