// Makes the part of an experiment's page that shows results.json: tables and charts of intervals. Only .cpp files of
// this directory may include this header, because it uses the JSON library.
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
    std::string arm;   // the arm that ran; empty if none could be chosen
  };
  std::vector<Contender> contenders;
  std::vector<int64_t> seeds;
  std::string tables;  // HTML
  // A list with an entry {"title", "axis", "reference", "rows"} for each measure that has an interval. `reference` is
  // the value of the reference arm (1 for ratios, 0 for differences). A row is {"name", "value", "low", "high",
  // "seeds"}: `value` is the mean, `low` and `high` are the mean's 95 % interval (null if unknown), and `seeds` are the
  // values of the seeds.
  nlohmann::json intervals;
};

// Reads a results.json. Throws UserError if it cannot be read, is damaged, or is of a different format or version.
ReportedComparison read_comparison(const std::filesystem::path& path);

}  // namespace copus
