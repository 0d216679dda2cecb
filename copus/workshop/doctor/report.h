// The findings of `copus doctor` as text and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "copus/workshop/doctor/finding.h"

namespace copus {

inline constexpr const char* doctor_of_trainer = "doctor-trainer";  // the hidden command of copus-torch

nlohmann::json to_json(const Finding& finding);
// Reads a line of JSON that holds a finding; empty if it holds none.
std::optional<Finding> finding_of(std::string_view line);

// Returns one line for each finding, followed by its remedy, and a last line with counts.
std::string doctor_text(const std::vector<Finding>& findings);
nlohmann::json doctor_json(const std::vector<Finding>& findings);
bool has_bad(const std::vector<Finding>& findings);

}  // namespace copus
