// The hidden command `copus-torch doctor-trainer`, which `copus doctor` starts: prints one line of JSON for each
// finding.
#include <iostream>
#include <nlohmann/json.hpp>

#include "copus/base/text/json_text.h"
#include "copus/workshop/commands.h"
#include "copus/workshop/doctor/report.h"
#include "copus/workshop/doctor/trainer_checks.h"

namespace copus {

void add_doctor_of_trainer(CLI::App& program, CommandAction& action) {
  program.add_subcommand(doctor_of_trainer)->group("")->callback([&action] {
    action = [] {
      check_trainer([](const Finding& finding) { std::cout << json_text(to_json(finding)) << '\n' << std::flush; });
      return 0;
    };
  });
}

}  // namespace copus
