#include <cstdio>
#include <cstdlib>

#include "apps/copus/program.h"
#include "copus/base/files/write_error.h"
#include "copus/base/process/standard_descriptors.h"

int main(int argc, char** argv) {
  copus::open_standard_descriptors();
  copus::report_file_size_limit();
  const int exit_code = copus::run_program(argc, argv);
  std::fflush(nullptr);
  std::_Exit(exit_code);  // skips the destructors of libtorch's globals, which take a third of a second or more
}
