#include "copus/comm/messages/tcp_place.h"

#include <sstream>

#include "copus/base/error.h"

namespace copus {

std::string to_text(const TcpPlace& place) {
  return concat(place.address.host, ' ', place.address.port, place.token.empty() ? "" : " ", place.token);
}

TcpPlace read_place(const std::string& text, const std::string& whose, bool with_token) {
  constexpr int64_t largest_port = 65535;
  TcpPlace place;
  std::istringstream words(text);
  words >> place.address.host >> place.address.port;
  if (with_token) words >> place.token;
  const bool is_read = !words.fail();
  std::string more;
  const bool is_all = !(words >> more);
  const bool is_port = place.address.port >= 1 && place.address.port <= largest_port;
  const bool is_token = place.token.size() == (with_token ? token_letters : 0);
  if (is_read && is_all && is_port && is_token) return place;
  throw UserError(concat("what ", whose, " has left at the meeting place for others to connect to it is no address; ",
                         "does another job meet there too? Give each its own MASTER_PORT"));
}

}  // namespace copus
