#include "copus/workshop/published/runs.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <map>
#include <stdexcept>
#include <utility>

#include "copus/base/error.h"

namespace copus {
namespace {

struct CsvRow {
  int64_t line = 0;  // where it begins, from 1
  std::vector<std::string> cells;
};

std::vector<CsvRow> parse_csv(std::string_view text, const std::string& source) {
  constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";  // spreadsheets write one
  if (text.starts_with(byte_order_mark)) text.remove_prefix(byte_order_mark.size());
  std::vector<CsvRow> rows;
  int64_t line = 1;
  size_t position = 0;
  while (position < text.size()) {
    CsvRow row{.line = line, .cells = {""}};
    bool quoted = false;
    for (; position < text.size(); ++position) {
      const char character = text[position];
      if (character == '\n') ++line;
      if (quoted) {
        if (character != '"') {
          row.cells.back() += character;
        } else if (position + 1 < text.size() && text[position + 1] == '"') {
          row.cells.back() += text[++position];
        } else {
          quoted = false;
        }
      } else if (character == '"') {
        quoted = true;
      } else if (character == ',') {
        row.cells.emplace_back();
      } else if (character == '\n') {
        break;
      } else if (character != '\r') {
        row.cells.back() += character;
      }
    }
    if (quoted) throw UserError(concat(source, ":", row.line, ": a cell's quote is never closed; close it with '\"'"));
    ++position;
    if (row.cells != std::vector<std::string>{""}) rows.push_back(std::move(row));
  }
  return rows;
}

// A row with access to its cells by column name.
class Row {
 public:
  Row(const std::string& source, const std::map<std::string, size_t>& columns, const CsvRow& row)
      : source_(source), columns_(columns), row_(row) {}

  // Empty if the table has no such column.
  const std::string& text(const std::string& column) const {
    static const std::string none;
    const auto found = columns_.find(column);
    return found == columns_.end() ? none : row_.cells[found->second];
  }

  std::optional<int64_t> integer(const std::string& column) const {
    return number<int64_t>(column, "a whole number from 0 to 10^9, or nothing",
                           [](int64_t value) { return value <= 1'000'000'000; });
  }

  std::optional<double> real(const std::string& column) const {
    return number<double>(column, "a number that is not negative, or nothing",
                          [](double value) { return std::isfinite(value) && value >= 0; });
  }

  std::optional<bool> flag(const std::string& column) const {
    const std::optional<int64_t> value = number<int64_t>(column, "0, 1 or nothing", [](int64_t v) { return v <= 1; });
    return value ? std::optional<bool>(*value == 1) : std::nullopt;
  }

 private:
  template <class Number, class IsFine>
  std::optional<Number> number(const std::string& column, const char* expected, const IsFine& is_fine) const {
    const std::string& cell = text(column);
    if (cell.empty()) return std::nullopt;
    Number value{};
    const auto [stopped, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
    if (error != std::errc{} || stopped != cell.data() + cell.size() || value < 0 || !is_fine(value)) {
      throw UserError(concat(source_, ":", row_.line, ": column ", column, " is '", cell, "'; expected ", expected));
    }
    return value;
  }

  const std::string& source_;
  const std::map<std::string, size_t>& columns_;
  const CsvRow& row_;
};

// All needed columns. They are checked first, so that a missing one is reported even if no row uses it.
constexpr const char* needed_columns[] = {"row_id",    "framework",  "hardware",    "n_gpus",     "gpus_per_node",
                                          "params_b",  "n_layers",   "hidden",      "heads",      "kv_heads",
                                          "ffn",       "glu",        "vocab",       "seq_len",    "precision",
                                          "dp",        "tp",         "pp",          "vpp",        "cp",
                                          "sp",        "zero_stage", "micro_batch", "grad_accum", "global_batch",
                                          "recompute", "notes",      "rank_set",    "group"};

std::map<std::string, size_t> read_header(const CsvRow& header, PublishedTable table, const std::string& source) {
  std::map<std::string, size_t> columns;
  for (size_t i = 0; i < header.cells.size(); ++i) {
    if (!columns.emplace(header.cells[i], i).second) {
      throw UserError(concat(source, ":", header.line, ": two columns are named '", header.cells[i], "'"));
    }
  }
  for (const char* column : needed_columns) {
    if (!columns.contains(column)) {
      throw UserError(concat(source, ":", header.line, ": there is no column '", column,
                             "'; the first line names the columns (docs/benches.md lists them)"));
    }
  }
  const bool of_failures = table == PublishedTable::failures;
  const char* measured = of_failures ? "status" : "tokens_per_s_per_gpu";
  if (!columns.contains(measured)) {
    throw UserError(concat(source, ":", header.line, ": there is no column '", measured, "', which a table of ",
                           of_failures ? "failures" : "throughput", " has; is it the other table?"));
  }
  return columns;
}

// Thrown within this file for a row that is incomplete or cannot be described in Copus's terms.
class Unusable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

int64_t needed(const Row& row, const char* column) {
  const std::optional<int64_t> value = row.integer(column);
  if (!value || *value == 0) throw Unusable(concat(column, " is not given"));
  return *value;
}

// The product of non-negative factors. Throws Unusable if 64-bit numbers derived from it could overflow.
int64_t product(const char* name, std::initializer_list<int64_t> factors) {
  constexpr double most = 1e15;
  double approximate = 1;
  int64_t exact = 1;
  for (const int64_t factor : factors) {
    approximate *= static_cast<double>(factor);
    if (approximate > most) throw Unusable(concat(name, " is beyond 10^15"));
    exact *= factor;
  }
  return exact;
}

// An empty cell or 0 means 1.
int64_t degree(const Row& row, const char* column) { return std::max<int64_t>(1, row.integer(column).value_or(1)); }

double count_parameters_of(const PublishedRun& run, bool tied) {
  ModelDescription model = run.model;
  model.tie_word_embeddings = tied;
  const auto gate = static_cast<double>(model.num_layers * model.hidden_size * model.intermediate_size);
  return static_cast<double>(count_parameters(model)) - (run.gated ? 0 : gate);
}

bool says_tied(const PublishedRun& run, const Row& row) {
  const std::optional<double> billions = row.real("params_b");
  if (!billions) return false;
  const std::string& cell = row.text("params_b");
  const size_t point = cell.find('.');
  const double decimals = point == std::string::npos ? 0 : static_cast<double>(cell.size() - point - 1);
  const double last_place = std::pow(10.0, -decimals);
  const auto explains = [&](bool tied) {
    return std::abs(count_parameters_of(run, tied) / 1e9 - *billions) <= last_place;
  };
  return explains(true) && !explains(false);
}

// Shapes of well-known models that some tables do not give. InternLM and Aquila2 come from their config.json; GPT-3
// comes from its paper (Brown et al. 2020), with the vocabulary padded as by Megatron-LM.
struct KnownShape {
  std::string_view name;
  int64_t layers, hidden, heads, ffn, vocab;
};
constexpr KnownShape known_shapes[] = {{"InternLM-7B", 32, 4096, 32, 11008, 103168},
                                       {"Aquila2-7B", 32, 4096, 32, 11008, 100008},
                                       {"GPT3-6.7B", 32, 4096, 32, 16384, 50304},
                                       {"GPT3-13B", 40, 5120, 40, 20480, 50304},
                                       {"GPT 175B", 96, 12288, 96, 49152, 51200}};

void read_model(const Row& row, PublishedRun& run) {
  const auto* const known = std::find_if(std::begin(known_shapes), std::end(known_shapes),
                                         [&](const KnownShape& shape) { return shape.name == row.text("model"); });
  const auto size = [&](const char* column, int64_t KnownShape::* of_known) {
    const bool is_given = row.integer(column).value_or(0) > 0;
    return is_given || known == std::end(known_shapes) ? needed(row, column) : known->*of_known;
  };
  ModelDescription& model = run.model;
  model.num_layers = size("n_layers", &KnownShape::layers);
  model.hidden_size = size("hidden", &KnownShape::hidden);
  model.num_heads = size("heads", &KnownShape::heads);
  model.num_kv_heads = row.integer("kv_heads").value_or(model.num_heads);
  model.intermediate_size = size("ffn", &KnownShape::ffn);
  model.vocab_size = size("vocab", &KnownShape::vocab);
  run.sequence_length = needed(row, "seq_len");
  model.max_position_embeddings = run.sequence_length;
  if (model.hidden_size % model.num_heads != 0) {
    throw Unusable(concat("hidden ", model.hidden_size, " is no multiple of heads ", model.num_heads));
  }
  if (model.num_kv_heads == 0 || model.num_heads % model.num_kv_heads != 0) {
    throw Unusable(concat("heads ", model.num_heads, " is no multiple of kv_heads ", model.num_kv_heads));
  }
  model.head_dim = model.hidden_size / model.num_heads;
  constexpr int64_t most_layers = 1000;  // predictions for more would take too long
  if (model.num_layers > most_layers) throw Unusable(concat("n_layers ", model.num_layers, " is beyond ", most_layers));
  product("the number of parameters", {model.num_layers, model.hidden_size, model.hidden_size});
  product("the number of parameters", {model.num_layers, model.hidden_size, model.intermediate_size});
  product("the number of parameters", {model.vocab_size, model.hidden_size});
  run.gated = row.flag("glu").value_or(true);
  model.tie_word_embeddings = says_tied(run, row);
}

// "1", "3 (Megatron-FSDP)", "1 (size 8)", "3 (FSDP 256)", "1 (all DP)".
void read_zero_stage(const Row& row, PublishedRun& run) {
  const std::string& cell = row.text("zero_stage");
  if (cell.empty()) return;
  if (cell[0] < '0' || cell[0] > '3' || (cell.size() > 1 && cell[1] != ' ')) {
    throw Unusable(concat("zero_stage '", cell, "' is none of 0 to 3"));
  }
  run.zero_stage_said = cell[0] - '0';
  run.configuration.strategy.zero_stage = *run.zero_stage_said;
  const size_t group = cell.find_first_of("0123456789", 1);
  if (group != std::string::npos) std::from_chars(cell.data() + group, cell.data() + cell.size(), run.zero_group);
}

Recompute nearest_recompute(const std::string& cell) {
  if (cell.empty() || cell == "none") return Recompute::none;
  return cell == "full" || cell.find("block") != std::string::npos ? Recompute::full : Recompute::attention;
}

void read_batches(const Row& row, PublishedRun& run) {
  Configuration& configuration = run.configuration;
  configuration.micro_batch = needed(row, "micro_batch");
  const std::optional<int64_t> steps = row.integer("grad_accum");
  configuration.global_batch =
      steps && *steps > 0
          ? product("the global batch", {configuration.strategy.data_parallel, configuration.micro_batch, *steps})
          : needed(row, "global_batch");
  product("the stream of a step, in elements",
          {configuration.global_batch, run.sequence_length, std::max(run.model.hidden_size, run.num_gpus)});
}

void read_configuration(const Row& row, PublishedRun& run) {
  ParallelStrategy& strategy = run.configuration.strategy;
  run.num_gpus = needed(row, "n_gpus");
  strategy.tensor_parallel = needed(row, "tp");
  strategy.pipeline_parallel = needed(row, "pp");
  run.context_parallel = degree(row, "cp");
  const int64_t replica =
      product("tp x pp x cp", {strategy.tensor_parallel, strategy.pipeline_parallel, run.context_parallel});
  strategy.data_parallel = row.integer("dp").value_or(run.num_gpus / replica);
  if (product("dp x tp x pp x cp", {strategy.data_parallel, replica}) != run.num_gpus) {
    throw Unusable{
        concat("dp ", strategy.data_parallel, " x tp x pp x cp ", replica, " are not n_gpus ", run.num_gpus)};
  }
  if (strategy.pipeline_parallel > 1) strategy.virtual_stages = degree(row, "vpp");
  if (strategy.virtual_stages > 1) strategy.schedule = PipelineSchedule::interleaved_1f1b;
  run.sequence_parallel_said = row.flag("sp");
  strategy.sequence_parallel = run.sequence_parallel_said.value_or(false) && strategy.tensor_parallel > 1;
  strategy.recompute = nearest_recompute(run.recompute);
  read_zero_stage(row, run);
  read_batches(row, run);

  if (const auto reason = infeasible_reason(run.model, run.configuration, run.sequence_length)) throw Unusable(*reason);
}

PublishedRun read_run(const Row& row) {
  PublishedRun run;
  run.row_id = row.text("row_id");
  run.rank_set = row.text("rank_set");
  run.group = row.text("group");
  run.framework = row.text("framework");
  run.hardware = row.text("hardware");
  run.notes = row.text("notes");
  run.gpus_per_node = row.integer("gpus_per_node").value_or(0);
  run.precision = row.text("precision");
  run.recompute = row.text("recompute");
  run.tokens_per_second_per_gpu = row.real("tokens_per_s_per_gpu");
  run.memory_gigabytes = row.real("mem_gb");
  run.status = row.text("status");
  try {
    read_model(row, run);
    read_configuration(row, run);
  } catch (const Unusable& unusable) {
    run.unusable = unusable.what();
  }
  return run;
}

}  // namespace

ModelDescription PublishedRun::gated_model() const {
  ModelDescription result = model;
  if (!gated) result.intermediate_size = model.intermediate_size * 2 / 3;
  return result;
}

std::vector<PublishedRun> parse_published_runs(std::string_view text, PublishedTable table, const std::string& source) {
  const std::vector<CsvRow> rows = parse_csv(text, source);
  if (rows.empty()) throw UserError(concat(source, ": is empty; expected a line of column names and rows"));
  const std::map<std::string, size_t> columns = read_header(rows.front(), table, source);
  std::vector<PublishedRun> runs;
  for (size_t i = 1; i < rows.size(); ++i) {
    if (rows[i].cells.size() != columns.size()) {
      throw UserError(concat(source, ":", rows[i].line, ": ", rows[i].cells.size(),
                             " cells, where the first line names ", columns.size(),
                             " columns; quote cells that hold commas"));
    }
    runs.push_back(read_run(Row(source, columns, rows[i])));
  }
  return runs;
}

}  // namespace copus
