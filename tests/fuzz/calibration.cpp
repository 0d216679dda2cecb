// The files of a calibration: branches.jsonl, and calibration.json, which a run's configuration may name.
#include "copus/config/descriptions.h"
#include "copus/report/files/calibration_files.h"
#include "copus/statistics/branch_calibration.h"
#include "fuzz_target.h"

using namespace copus;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::filesystem::path path = scratch_folder() / "calibration";
  write_scratch(path, text_of(data, size));
  accepted([&] { return read_calibration_file(path, "run.toml:1: noise_scale.calibration"); });
  if (const auto outcomes = accepted([&] { return read_branch_log(path); })) branch_efficiencies(*outcomes, 64);
  return 0;
}
