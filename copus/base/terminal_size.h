// How large a terminal is, for output that has to fit it.
#pragma once

#include <sys/ioctl.h>

namespace copus {

struct TerminalSize {
  int columns = 80;
  int rows = 24;
};

// Asks the terminal behind the descriptor. The usual size where there is none, or it does not tell.
inline TerminalSize terminal_size(int descriptor) {
  winsize size{};
  if (ioctl(descriptor, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return {};
  return {size.ws_col, size.ws_row};
}

}  // namespace copus
