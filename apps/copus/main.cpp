#include "apps/copus/program.h"
#include "copus/base/standard_descriptors.h"

int main(int argc, char** argv) {
  copus::open_standard_descriptors();
  return copus::run_program(argc, argv);
}
