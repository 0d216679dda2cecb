#include "apps/copus/program.h"

int main(int argc, char** argv) { return copus::run_program(argc, argv); }
