// What is found at the ranks' meeting place: an address, and the job's secret.
#include "copus/comm/messages/tcp_place.h"
#include "fuzz_target.h"

using namespace copus;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(text_of(data, size));
  for (const bool with_token : {true, false}) {
    const auto place = accepted([&] { return read_place(text, "rank 0", with_token); });
    if (!place) continue;
    const TcpPlace again = read_place(to_text(*place), "rank 0", with_token);
    expect(again.address.host == place->address.host && again.address.port == place->address.port &&
               again.token == place->token,
           "a place reads back as another one");
    // Whoever is told so connects there, or is told that the address is none.
    if (with_token) accepted([&] { return TcpDoor(place->address.host, place->token, 2).address().port; });
  }
  return 0;
}
