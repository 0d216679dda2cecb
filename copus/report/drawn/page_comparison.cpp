#include "copus/report/drawn/page_comparison.h"

#include <cmath>
#include <map>
#include <optional>

#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"
#include "copus/base/text/escape_html.h"
#include "copus/base/text/json_text.h"
#include "copus/base/text/units.h"
#include "copus/page/web_page.h"
#include "copus/report/drawn/page_curves.h"

namespace copus {

namespace {

using PageJson = nlohmann::json;

// Describes how results.json stores one measure: the time to a target, or the loss at the end.
struct Measure {
  bool is_target;
  std::string title;

  double of_seed(const PageJson& run) const { return run.at(is_target ? "seconds" : "held_out_loss").get<double>(); }
  bool knows(const PageJson& run) const { return !run.at(is_target ? "seconds" : "held_out_loss").is_null(); }
  // The mean over seeds relative to the reference, or an end of its interval.
  const PageJson& against_reference(const PageJson& measured, const char* end) const {
    static const PageJson unknown;
    if (is_target) return measured.at(concat("time_ratio", *end == '\0' ? "" : "_", end));
    const PageJson& difference = measured.at("difference");
    return difference.is_null() ? unknown : difference.at(*end == '\0' ? "mean" : end);
  }
  double compared(double value, double reference) const { return is_target ? value / reference : value - reference; }
  std::string text(double value) const { return format_number(is_target ? "%.3f" : "%+.4f", value); }
};

int64_t seed_of(const PageJson& value) {
  const std::optional<int64_t> seed = integer_of(value);
  if (!seed) throw UserError(concat("a seed is ", value.dump()));
  return *seed;
}

// The measures of an experiment, in the order of their tables, each with a function that finds its part of a result.
std::vector<Measure> measures_of(const PageJson& result) {
  std::vector<Measure> measures;
  for (const PageJson& target : result.at("targets")) {
    measures.push_back({true, concat("To a held-out loss of ",
                                     format_number("%g nats/token", target.at("held_out_loss").get<double>()))});
  }
  if (!result.at("final_loss").is_null()) measures.push_back({false, "Held-out loss at the end, nats/token"});
  return measures;
}

const PageJson& measured(const PageJson& result, const std::vector<Measure>& measures, size_t index) {
  return measures[index].is_target ? result.at("targets").at(index) : result.at("final_loss");
}

std::string full_name_of(const PageJson& result) {
  const auto name = result.at("name").get<std::string>();
  const PageJson& arm = result.at("arm");
  return arm.is_null() || arm == name ? name : concat(name, " = ", arm.get<std::string>());
}

std::vector<std::string> means(const Measure& measure, const PageJson& part) {
  if (measure.is_target) {
    return {format_duration(part.at("seconds").get<double>()), format_count(part.at("tokens").get<double>())};
  }
  return {format_number("%.4f", part.at("mean_held_out_loss").get<double>())};
}

std::string with_interval(const Measure& measure, const PageJson& part) {
  const PageJson& mean = measure.against_reference(part, "");
  if (mean.is_null()) return "the reference is not reported";
  const PageJson& low = measure.against_reference(part, "low");
  const PageJson& high = measure.against_reference(part, "high");
  std::string text = measure.text(mean.get<double>());
  if (low.is_null() || high.is_null()) return text;
  return concat(text, " (", measure.text(low.get<double>()), " to ", measure.text(high.get<double>()), ")");
}

std::string detectable(const Measure& measure, const PageJson& part) {
  const PageJson& difference = part.at(measure.is_target ? "log_seconds_difference" : "difference");
  if (difference.is_null() || difference.at("detectable").is_null()) return "-";
  const double value = difference.at("detectable").get<double>();
  return measure.is_target ? format_number("%.1f %%", 100 * std::expm1(value)) : format_number("%.4f", value);
}

// The first columns, which all tables of measures have.
WebTable table_of(const Measure& measure) {
  WebTable table{{{"arm"}}, {}};
  if (measure.is_target) {
    table.columns.insert(table.columns.end(), {{"time"}, {"tokens"}});
  } else {
    table.columns.push_back({"loss"});
  }
  return table;
}

// The name and means of a result, or why there are none, padded with empty cells to the table's width.
std::vector<std::string> row_of(const Measure& measure, const PageJson& result, const PageJson& part, bool& reported) {
  std::vector<std::string> row{escape_html(full_name_of(result))};
  reported = part.at("refusal").is_null();
  if (!reported) {
    row.push_back(escape_html(concat("not reported: ", part.at("refusal").get<std::string>())));
    return row;
  }
  for (std::string& cell : means(measure, part)) row.push_back(std::move(cell));
  return row;
}

std::string comparison_table(const PageJson& results, const std::string& reference,
                             const std::vector<Measure>& measures, size_t index) {
  const Measure& measure = measures[index];
  WebTable table = table_of(measure);
  table.columns.insert(table.columns.end(),
                       {{measure.is_target ? "time / reference (95 %)" : "- reference (95 %)"}, {"detectable"}});
  table.columns[1].wraps = true;
  for (const PageJson& result : results) {
    const PageJson& part = measured(result, measures, index);
    bool reported = false;
    std::vector<std::string> row = row_of(measure, result, part, reported);
    if (reported && result.at("name") == reference) {
      row.emplace_back("reference");
    } else if (reported) {
      row.push_back(with_interval(measure, part));
      row.push_back(detectable(measure, part));
    }
    row.resize(table.columns.size());
    table.rows.push_back(std::move(row));
  }
  return concat("<section class=\"card block\"><h2>", escape_html(measure.title), "</h2>", to_html(table),
                "</section>\n");
}

std::string screening_tables(const PageJson& group) {
  const PageJson& screened = group.at("screened");
  std::string html =
      concat("<details class=\"card\"><summary>Group ", escape_html(group.at("name").get<std::string>()),
             ": how its arm was chosen</summary><p>",
             group.at("chosen").is_null() ? "No arm could be chosen: "
                                          : escape_html(concat(group.at("chosen").get<std::string>(), ", ")),
             escape_html(group.at("reason").get<std::string>()), "</p>");
  if (screened.empty()) return html + "</details>\n";
  const std::vector<Measure> measures = measures_of(screened.front());
  for (size_t i = 0; i < measures.size(); ++i) {
    WebTable table = table_of(measures[i]);
    table.columns[1].wraps = true;
    for (const PageJson& result : screened) {
      bool reported = false;
      table.rows.push_back(row_of(measures[i], result, measured(result, measures, i), reported));
      table.rows.back().resize(table.columns.size());
    }
    html += concat("<p>", escape_html(measures[i].title), "</p>", to_html(table));
  }
  return html + "</details>\n";
}

PageJson intervals_of(const PageJson& results, const std::string& reference, const std::vector<Measure>& measures,
                      size_t index) {
  const Measure& measure = measures[index];
  std::map<int64_t, double> of_reference;
  for (const PageJson& result : results) {
    if (result.at("name") != reference) continue;
    for (const PageJson& run : measured(result, measures, index).at("runs")) {
      if (measure.knows(run)) of_reference[seed_of(run.at("seed"))] = measure.of_seed(run);
    }
  }
  PageJson rows = PageJson::array();
  for (const PageJson& result : results) {
    const PageJson& part = measured(result, measures, index);
    if (result.at("name") == reference || measure.against_reference(part, "").is_null()) continue;
    PageJson seeds = PageJson::array();
    for (const PageJson& run : part.at("runs")) {
      const auto found = of_reference.find(seed_of(run.at("seed")));
      if (measure.knows(run) && found != of_reference.end()) {
        seeds.push_back(shortened(measure.compared(measure.of_seed(run), found->second)));
      }
    }
    rows.push_back({{"name", full_name_of(result)},
                    {"value", measure.against_reference(part, "")},
                    {"low", measure.against_reference(part, "low")},
                    {"high", measure.against_reference(part, "high")},
                    {"seeds", std::move(seeds)}});
  }
  return {
      {"title", measure.title},
      {"axis", measure.is_target ? concat("time / that of ", reference, "; below 1 is faster")
                                 : concat("held-out loss - that of ", reference, ", nats/token; below 0 is better")},
      {"reference", measure.is_target ? 1 : 0},
      {"rows", std::move(rows)}};
}

ReportedComparison comparison_of(const PageJson& file) {
  if (file.at("format") != "copus-comparison" || file.at("version") != 1) {
    throw UserError("expected \"format\" to be \"copus-comparison\" and \"version\" 1");
  }
  ReportedComparison comparison;
  comparison.intervals = PageJson::array();
  for (const PageJson& seed : file.at("seeds")) comparison.seeds.push_back(seed_of(seed));
  const PageJson& results = file.at("results");
  const auto reference = file.at("reference").get<std::string>();
  for (const PageJson& result : results) {
    const PageJson& arm = result.at("arm");
    comparison.contenders.push_back(
        {result.at("name").get<std::string>(), arm.is_null() ? "" : arm.get<std::string>()});
  }
  const std::vector<Measure> measures = measures_of(results.at(0));
  for (size_t i = 0; i < measures.size(); ++i) {
    comparison.tables += comparison_table(results, reference, measures, i);
    PageJson intervals = intervals_of(results, reference, measures, i);
    if (!intervals.at("rows").empty()) comparison.intervals.push_back(std::move(intervals));
  }
  for (const PageJson& group : file.at("groups")) comparison.tables += screening_tables(group);
  return comparison;
}

}  // namespace

ReportedComparison read_comparison(const std::filesystem::path& path) {
  const std::string text = read_text_file(path);
  try {
    if (nests_too_deeply(text)) throw UserError("is nested too deeply");
    return comparison_of(PageJson::parse(text));
  } catch (const PageJson::exception& error) {
    throw UserError(concat(path.string(), ": damaged: ", error.what(), ". `copus compare` writes it anew."));
  } catch (const UserError& error) {
    throw UserError(concat(path.string(), ": ", error.what(), ". `copus compare` of this version writes it anew."));
  }
}

}  // namespace copus
