// Declares the commands of this directory that need libtorch to the program without it, which runs them as copus-torch.
#include "copus/workshop/commands.h"

namespace copus {

void add_profile(CLI::App& program, CommandAction& action, RankJobs& /*jobs*/) {
  add_with_libtorch(program, action, "copus", "profile", about_profile);
}
void add_doctor_of_trainer(CLI::App& /*program*/, CommandAction& /*action*/) {}
void add_selftest(CLI::App& program, CommandAction& action, RankJobs& /*jobs*/) {
  add_with_libtorch(program, action, "copus", "selftest", about_selftest);
}
void add_step_bench(CLI::App& bench, CommandAction& action) {
  add_with_libtorch(bench, action, "copus bench", "step", about_step_bench);
}
void add_probe_bench(CLI::App& bench, CommandAction& action, RankJobs& /*jobs*/) {
  add_with_libtorch(bench, action, "copus bench", "gns", about_probe_bench);
}
void add_relayout_bench(CLI::App& bench, CommandAction& action, RankJobs& /*jobs*/) {
  add_with_libtorch(bench, action, "copus bench", "relayout", about_relayout_bench);
}

}  // namespace copus
