// `copus report`: writes the web page of a run again.
#include <filesystem>
#include <iostream>
#include <memory>

#include "copus/cli/commands.h"
#include "copus/report/html_report.h"

namespace copus {

void add_report(CLI::App& program, CommandAction& action) {
  auto directory = std::make_shared<std::filesystem::path>();
  CLI::App& command = *program.add_subcommand("report", "Write report.html for a run, finished or not");
  command.add_option("RUN_DIR", *directory, "The run directory")->required();
  command.footer("Example:\n  copus report runs/r1");
  command.callback([directory, &action] {
    action = [directory] {
      write_html_report(*directory);
      std::cout << "Wrote " << (*directory / "report.html").string() << ".\n";
      return 0;
    };
  });
}

}  // namespace copus
