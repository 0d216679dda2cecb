// The size of a terminal, for output that has to fit it.
#pragma once

#include <sys/ioctl.h>

namespace copus {

struct TerminalSize {
  int columns = 80;
  int rows = 24;
};

// Returns the size of the terminal at the descriptor, or the usual size if there is no terminal or the terminal reports
// no size.
inline TerminalSize terminal_size(int descriptor) {
  winsize size{};
  if (ioctl(descriptor, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return {};
  return {size.ws_col, size.ws_row};
}

}  // namespace copus
