// Writes the event files that tensorboard_read_test.py reads: those of a run that is killed in the middle of a record
// at step 10 and resumed from its checkpoint of step 6.
#include <filesystem>
#include <fstream>

#include "copus/report/viewers/tensorboard.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::filesystem::path dir = argv[1];
  {
    copus::TensorBoardWriter writer(dir);
    for (int step = 1; step <= 10; ++step) {
      writer.scalar("train/loss", step, 1.0 / step, 1000 + step);
      if (step % 5 == 0) writer.scalar("held_out/loss", step, 2.0 / step, 1000 + step);
    }
  }
  const std::filesystem::path first_file = std::filesystem::directory_iterator(dir)->path();
  std::filesystem::resize_file(first_file, std::filesystem::file_size(first_file) - 7);

  copus::TensorBoardWriter writer(dir, 6);
  for (int step = 7; step <= 12; ++step) writer.scalar("train/loss", step, 100.0 / step, 2000 + step);
  writer.scalar("train/loss", int64_t{1} << 40, -0.5, 3000.25);
}
