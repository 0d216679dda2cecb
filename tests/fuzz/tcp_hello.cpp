// What strangers say at a rank's door.
#include <vector>

#include "copus/comm/messages/tcp_socket.h"
#include "fuzz_target.h"
#include "loopback.h"

using namespace copus;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int64_t ranks = 4;
  static const std::string token(token_letters, 'a');
  static TcpDoor door("127.0.0.1", token, ranks);
  const std::string_view said = text_of(data, size).substr(0, 4096);
  std::vector<TcpDoor::Guest> guests;
  {
    const LoopbackConnection stranger(door.address().port);
    stranger.send(said);
    // The kernel may take a moment to hand over what was said, and after this nobody is there.
    for (int look = 0; look < 3 && guests.empty(); ++look) guests = door.admit();
  }
  for (const TcpDoor::Guest& guest : door.admit())
    expect(false, concat("rank ", guest.rank, " came after it had left"));
  expect(guests.size() <= 1, "one stranger is several ranks");
  for (const TcpDoor::Guest& guest : guests) {
    expect(guest.rank >= 0 && guest.rank < ranks, "a rank that the job does not have was let in");
    const std::vector<std::byte> expected = hello(token, guest.rank);
    const std::string_view right(reinterpret_cast<const char*>(expected.data()), expected.size());
    expect(said.starts_with(right), "somebody was let in who does not know the secret");
  }
  return 0;
}
