// The bytes that come over the connection to another machine's launcher.
#include <sys/socket.h>

#include <array>

#include "copus/comm/job/healing/remote_machine.h"
#include "fuzz_target.h"

using namespace copus;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes = text_of(data, size).substr(0, size_t{1} << 16);
  std::array<int, 2> ends{-1, -1};
  COPUS_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) == 0);
  RemoteMachine machine(1, TcpSocket(ends[0]));
  TcpSocket other(ends[1]);
  // In two parts, the first of which may end within a text.
  const auto all = std::as_bytes(std::span(bytes));
  other.send(all.first(all.size() / 2));
  machine.hear(0.1);
  other.send(all.subspan(all.size() / 2));
  machine.hear(0.1);
  machine.tell(Conclude{1});
  machine.loss();
  machine.name();
  return 0;
}
