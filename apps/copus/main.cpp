#include "apps/copus/program.h"
#include "copus/base/standard_descriptors.h"
#include "copus/base/write_error.h"

int main(int argc, char** argv) {
  copus::open_standard_descriptors();
  copus::report_file_size_limit();
  return copus::run_program(argc, argv);
}
