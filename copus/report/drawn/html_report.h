// The page of runs, or of an experiment: one self-contained file with their curves, switches, decisions and numbers.
#pragma once

#include <filesystem>
#include <vector>

#include "copus/report/decision_log.h"

namespace copus {

// Reads run.jsonl, and decisions.jsonl, summary.json and config.toml if they exist, and writes <run_dir>/report.html.
// Works while the run is still going. Throws UserError: no run.jsonl, a damaged file, or the page cannot be written.
void write_html_report(const std::filesystem::path& run_dir);

// Likewise, where the events of its decisions.jsonl have been read already.
void write_html_report(const std::filesystem::path& run_dir, std::vector<DecisionEvent> events);

// Writes a page of several runs, in this order, into `file`. Throws UserError also where one is named twice or there
// are more than can be told apart, which is 24.
void write_html_report(const std::vector<std::filesystem::path>& run_dirs, const std::filesystem::path& file);

// Whether `copus compare` works in this directory.
bool is_experiment_directory(const std::filesystem::path& directory);

// Writes the page of an experiment into `file`: the comparison of results.json, if it is there yet, and of every arm or
// group that is compared the run with the first seed that has one; while there is no comparison yet, of every arm.
// Throws UserError: nothing has run yet, a damaged file, or the page cannot be written.
void write_experiment_report(const std::filesystem::path& directory, const std::filesystem::path& file);

}  // namespace copus
