#include "copus/comm/messages/tcp_place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "copus/base/testing/test_support.h"

namespace copus {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(TcpPlace, ReadsWhatItWrites) {
  const std::string token = make_token();
  const TcpPlace with_token = read_place(to_text({{"10.0.0.1", 4000}, token}), "rank 0", true);
  EXPECT_EQ(with_token.address.host, "10.0.0.1");
  EXPECT_EQ(with_token.address.port, 4000);
  EXPECT_EQ(with_token.token, token);
  const TcpPlace without = read_place(to_text({{"fe80::1", 65535}, ""}), "rank 4", false);
  EXPECT_EQ(without.address.host, "fe80::1");
  EXPECT_EQ(without.address.port, 65535);
  EXPECT_EQ(without.token, "");
}

// Such a token or address can only result from a bug in Copus.
TEST(TcpPlace, RefusesOtherTextsAndKeepsThemSecret) {
  const std::string token(token_letters, 'a');
  const auto message = [](const std::string& text, bool with_token) {
    return user_error([&] { read_place(text, "rank 7", with_token); });
  };
  for (const std::string& text :
       {std::string(), std::string("host"), "host port " + token, "host 0 " + token, "host 65536 " + token,
        "host -1 " + token, "host 99999999999999999999 " + token, std::string("host 4000 a"),
        "host 4000 " + token + "a", std::string("host 4000"), "host 4000 " + token + " more"}) {
    EXPECT_THAT(message(text, true), AllOf(HasSubstr("rank 7"), Not(HasSubstr("aaaa")))) << text;
  }
  EXPECT_THAT(message("host 4000 " + token, false), HasSubstr("is no address"));
}

}  // namespace
}  // namespace copus
