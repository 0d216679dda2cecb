// Writes a comparison as tables for people: one per target, and one of the losses at the end.
#include <algorithm>
#include <cmath>

#include "copus/base/error.h"
#include "copus/base/text/units.h"
#include "copus/report/drawn/comparison.h"

namespace copus {

namespace {

using Row = std::vector<std::string>;

// Aligns rows in columns as wide as their widest cell. The last cell of a row may exceed its column.
std::string align(const std::vector<Row>& rows) {
  std::vector<size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i + 1 < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line = " ";
    for (size_t i = 0; i < row.size(); ++i) {
      line += " " + row[i];
      if (i + 1 < row.size()) line += std::string(widths[i] - row[i].size() + 1, ' ');
    }
    text += line + '\n';
  }
  return text;
}

std::string format_ratio(double value) { return format_number("%.3f", std::exp(value)); }
std::string format_loss(double value) { return format_number("%.4f", value); }
std::string format_difference(double value) { return format_number("%+.4f", value); }

std::string with_interval(const PairedDifference& difference, std::string (*format)(double)) {
  if (!difference.low) return format(difference.mean);
  return concat(format(difference.mean), " (", format(*difference.low), " to ", format(*difference.high), ")");
}

std::string detectable_of(const PairedDifference& difference, bool is_target) {
  if (!difference.detectable) return "-";
  return is_target ? format_number("%.1f %%", 100 * std::expm1(*difference.detectable))
                   : format_number("%.4f", *difference.detectable);
}

std::string full_name(const ArmResult& result) {
  return result.name == result.arm || result.arm.empty() ? result.name : concat(result.name, " = ", result.arm);
}

// The name of the arm and its means.
Row means_of(const ArmResult& result, const ArmMeasure& measurement) {
  if (!measurement.refusal.empty()) return {full_name(result), concat("not reported: ", measurement.refusal)};
  if (!measurement.target) return {full_name(result), format_loss(*measurement.mean_loss)};
  return {full_name(result), format_duration(*measurement.mean_seconds), format_count(*measurement.mean_tokens)};
}

Row row_of(const ArmResult& result, const ArmMeasure& measurement, bool is_reference) {
  Row row = means_of(result, measurement);
  if (!measurement.refusal.empty()) return row;
  if (is_reference) {
    row.emplace_back("reference");
  } else if (!measurement.against_reference) {
    row.emplace_back("the reference is not reported");
  } else {
    row.push_back(with_interval(*measurement.against_reference, measurement.target ? format_ratio : format_difference));
    row.push_back(detectable_of(*measurement.against_reference, measurement.target.has_value()));
  }
  return row;
}

std::string table_of(const std::vector<ArmResult>& results, size_t index, const std::string& reference) {
  const bool is_target = results.front().measurements[index].target.has_value();
  std::vector<Row> rows = {is_target ? Row{"arm", "time", "tokens", "time / reference (95 %)", "detectable"}
                                     : Row{"arm", "loss", "- reference (95 %)", "detectable"}};
  for (const ArmResult& result : results) {
    rows.push_back(row_of(result, result.measurements[index], result.name == reference));
  }
  return align(rows);
}

std::string title_of(const ArmMeasure& measurement) {
  return measurement.target ? concat("To a held-out loss of ", *measurement.target, " nats/token")
                            : "Held-out loss at the end, nats/token";
}

// The results of a group's arms on the screening seeds, by every measure.
std::string screening_of(const GroupChoice& choice) {
  std::string text =
      concat("Group ", choice.group, ": ",
             choice.chosen.empty() ? "no arm could be chosen: " : concat(choice.chosen, ", "), choice.reason, "\n");
  for (size_t i = 0; i < choice.arms.front().measurements.size(); ++i) {
    std::vector<Row> rows;
    for (const ArmResult& arm : choice.arms) rows.push_back(means_of(arm, arm.measurements[i]));
    text += concat("  ", title_of(choice.arms.front().measurements[i]), "\n", align(rows));
  }
  return text + '\n';
}

}  // namespace

std::string to_text(const Experiment& experiment, const Comparison& comparison) {
  std::string text;
  for (const GroupChoice& choice : comparison.groups) text += screening_of(choice);
  const std::vector<ArmResult>& results = comparison.results;
  for (size_t i = 0; i < results.front().measurements.size(); ++i) {
    text += concat(title_of(results.front().measurements[i]), ", ", counted(std::ssize(experiment.seeds), "seed"), "\n",
                   table_of(results, i, experiment.reference), "\n");
  }
  return text;
}

}  // namespace copus
