// Messages between launchers, and of ranks to launchers.
#include "copus/comm/job/healing/machine_messages.h"

#include "fuzz_target.h"

using namespace copus;

namespace {

// What a message says is the same once it has been written in our way.
template <class Read>
void read_and_write(std::string_view bytes, const Read& read) {
  const auto message = read(bytes);
  if (!message) return;
  const std::string written = packed(*message);
  const auto again = read(written);
  expect(again && packed(*again) == written, "a message reads back as another one");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes = text_of(data, size);
  read_and_write(bytes, order_from);
  read_and_write(bytes, news_from);
  read_and_write(bytes, from_rank);
  return 0;
}
