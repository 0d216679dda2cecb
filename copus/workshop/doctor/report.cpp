#include "copus/workshop/doctor/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "copus/base/error.h"
#include "copus/base/text/json_text.h"
#include "copus/base/text/printable.h"
#include "copus/base/text/units.h"

namespace copus {

namespace {

int64_t count(const std::vector<Finding>& findings, Verdict verdict) {
  return std::ranges::count(findings, verdict, &Finding::verdict);
}

std::string padded(std::string_view text, size_t width) {
  return std::string(text) + std::string(text.size() < width ? width - text.size() : 0, ' ');
}

}  // namespace

nlohmann::json to_json(const Finding& finding) {
  return {{"verdict", to_string(finding.verdict)},
          {"subject", finding.subject},
          {"text", finding.text},
          {"remedy", finding.remedy}};
}

std::optional<Finding> finding_of(std::string_view line) {
  const nlohmann::json json = parse_json(line);
  if (!json.is_object()) return std::nullopt;
  const auto text = [&](const char* name) {
    return json.contains(name) && json[name].is_string() ? std::string(json[name]) : "";
  };
  const std::optional<Verdict> verdict = find_value<Verdict>(text("verdict"));
  if (!verdict) return std::nullopt;
  return Finding{*verdict, text("subject"), text("text"), text("remedy")};
}

std::string doctor_text(const std::vector<Finding>& findings) {
  constexpr size_t verdict_width = 9, subject_width = 15;
  std::string text;
  for (const Finding& finding : findings) {
    text += concat(padded(to_string(finding.verdict), verdict_width), padded(finding.subject, subject_width),
                   printable(finding.text), "\n");
    if (!finding.remedy.empty())
      text += concat(std::string(verdict_width, ' '), "-> ", printable(finding.remedy), "\n");
  }
  const int64_t bad = count(findings, Verdict::bad), warnings = count(findings, Verdict::warning);
  return concat(text, bad == 0 ? "Nothing is bad" : concat(bad, " bad"), ", ", counted(warnings, "warning"), ".\n");
}

nlohmann::json doctor_json(const std::vector<Finding>& findings) {
  nlohmann::json lines = nlohmann::json::array();
  for (const Finding& finding : findings) lines.push_back(to_json(finding));
  return {{"findings", lines}, {"bad", count(findings, Verdict::bad)}, {"warnings", count(findings, Verdict::warning)}};
}

bool has_bad(const std::vector<Finding>& findings) { return count(findings, Verdict::bad) > 0; }

}  // namespace copus
