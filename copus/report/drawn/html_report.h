// The web page of runs or of an experiment: one self-contained file with curves, switches, decisions and numbers.
#pragma once

#include <filesystem>
#include <vector>

#include "copus/report/logs/decision_log.h"

namespace copus {

// Reads run.jsonl and, if they exist, decisions.jsonl, summary.json and config.toml, and writes <run_dir>/report.html.
// Works while the run is still training. Throws UserError if there is no run.jsonl, a file is damaged, or the page
// cannot be written.
void write_html_report(const std::filesystem::path& run_dir);

// The same, if the caller has already read the events of decisions.jsonl.
void write_html_report(const std::filesystem::path& run_dir, std::vector<DecisionEvent> events);

// Writes a page of several runs, in this order, into `file`. Throws UserError like the function above, or if a run is
// named twice. Also throws it for more than 24 runs, because their curves could not be distinguished.
void write_html_report(const std::vector<std::filesystem::path>& run_dirs, const std::filesystem::path& file);

// Whether the directory was made by `copus compare`.
bool is_experiment_directory(const std::filesystem::path& directory);

// Writes the page of an experiment into `file`: the comparison in results.json, if it exists yet, and one run of every
// compared arm or group, with the first seed for which there is a run. Without results.json, shows a run of every arm.
// Throws UserError if nothing has run yet, a file is damaged, or the page cannot be written.
void write_experiment_report(const std::filesystem::path& directory, const std::filesystem::path& file);

}  // namespace copus
