// report.html: a run as one self-contained page with its numbers, curves and configuration.
#pragma once

#include <filesystem>

namespace copus {

// Reads run.jsonl, and summary.json and config.toml if they exist, and writes <run_dir>/report.html. Works while the
// run is still going. Throws UserError: no run.jsonl, a damaged file, or the page cannot be written.
void write_html_report(const std::filesystem::path& run_dir);

}  // namespace copus
