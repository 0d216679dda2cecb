// What results.json tells the page of an experiment: its tables, and the intervals to draw. Only .cpp files of this
// room include this header, since it names JSON.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace copus {

struct ReportedComparison {
  struct Contender {
    std::string name;  // of the arm or group
    std::string arm;   // that ran; empty where none could be chosen
  };
  std::vector<Contender> contenders;
  std::vector<int64_t> seeds;
  std::string tables;  // HTML
  // A list of {"title", "axis", "reference", "rows"}, one for each measure with an interval: `reference` is the value
  // of the arm that the others are compared with (1 for ratios, 0 for differences), and a row is {"name", "value",
  // "low", "high", "seeds"}: the mean and its 95 % interval, null where not known, and the values seed by seed.
  nlohmann::json intervals;
};

// Reads a results.json. Throws UserError: not to be read, damaged, or of another format or version.
ReportedComparison read_comparison(const std::filesystem::path& path);

}  // namespace copus
