#include "copus/train/state/state_record.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/report/logs/run_log.h"

namespace copus {

namespace {

// Writes values and arrays of bytes one after another, for a reader that is the same program.
class RecordWriter {
 public:
  template <class Value>
  void add(const Value& value) {
    static_assert(std::is_trivially_copyable_v<Value>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void add_row(const void* values, int64_t bytes) {
    add(bytes);
    bytes_.append(static_cast<const char*>(values), bytes);
  }
  void add(const std::vector<int64_t>& values) {
    add_row(values.data(), std::ssize(values) * static_cast<int64_t>(sizeof(int64_t)));
  }
  void add(const std::string& text) { add_row(text.data(), std::ssize(text)); }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

class RecordReader {
 public:
  explicit RecordReader(std::string_view bytes) : bytes_(bytes) {}

  template <class Value>
  void read(Value& value) {
    static_assert(std::is_trivially_copyable_v<Value>);
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
  }
  std::string_view row() {
    int64_t bytes = 0;
    read(bytes);
    return take(bytes);
  }
  void read(std::vector<int64_t>& values) {
    const std::string_view bytes = row();
    values.resize(bytes.size() / sizeof(int64_t));
    if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  }
  bool is_at_end() const { return bytes_.empty(); }

 private:
  std::string_view take(int64_t count) {
    COPUS_CHECK(count >= 0 && count <= std::ssize(bytes_), "a record that is cut off");
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }

  std::string_view bytes_;
};

// Visits all fields of a training state except texts. They are plain values.
template <class Record, class Training>
void visit_numbers(Record& record, Training& training, const auto& visit) {
  visit(record, training.step);
  visit(record, training.optimizer_steps);
  visit(record, training.consumed_samples);
  visit(record, training.consumed_tokens);
  visit(record, training.skipped_steps);
  visit(record, training.skipped_samples);
  visit(record, training.skipped_in_a_row);
  visit(record, training.elapsed_seconds);
  visit(record, training.paused_seconds);
  visit(record, training.seed);
  visit(record, training.sequence_length);
  visit(record, training.byte_tokens);
  visit(record, training.data_begin);
  visit(record, training.noise_average);
  visit(record, training.sign_noise);
  visit(record, training.spectral_noise);
  visit(record, training.preconditioned_noise);
  visit(record, training.observed_samples);
  visit(record, training.configuration);
  visit(record, training.rate_factor);
  visit(record, training.optimizer);
}

// Returns the dtype of a rank's weights as a number.
int64_t dtype_of(const std::vector<BucketState>& state) {
  const auto has_weight = std::ranges::find_if(state, [](const BucketState& one) { return one.weight.defined(); });
  return has_weight == state.end() ? -1 : static_cast<int64_t>(has_weight->weight.scalar_type());
}

std::vector<FoundRecord> records_of_the_ended(const StateArena* arena) {
  std::vector<FoundRecord> records;
  if (arena == nullptr) return records;
  for (const int64_t process : arena->ended()) {
    FoundRecord record{.age = {}, .text = arena->record_of(process)};
    if (record.text.empty()) continue;
    RecordReader(record.text).read(record.age);
    records.push_back(std::move(record));
  }
  return records;
}

}  // namespace

void write_record(const SurvivingState& state, const TrainingState& training) {
  if (state.loaded_in < 0) return;
  if (!state.holds_state()) return state.arena->write_record("");
  RecordWriter writer;
  const RecordAge age{.loaded_in = state.loaded_in,
                      .moves = state.moves,
                      .step = std::max(training.step, state.decided.step),
                      .completed = training.step};
  writer.add(age);
  writer.add(dtype_of(state.at_rest.mine));
  visit_numbers(writer, training, [](RecordWriter& to, const auto& value) { to.add(value); });
  writer.add(training.data_fingerprint);
  writer.add(training.held_out_fingerprint);
  writer.add(state.decided);
  writer.add(state.update);
  // A record of a step before the decided one is useless.
  const bool is_latest = state.record && state.record->step == age.step;
  writer.add(is_latest ? to_line(*state.record) : std::string());
  writer.add(state.at_rest.all.processes);
  const auto& addresses = state.at_rest.all.addresses.words();
  writer.add(std::ssize(addresses));
  for (const std::vector<int64_t>& of_rank : addresses) writer.add(of_rank);
  state.arena->write_record(writer.bytes());
}

FoundRecord latest_record(const StateArena* arena, int64_t loaded_in) {
  FoundRecord latest;
  for (FoundRecord& record : records_of_the_ended(arena)) {
    if (record.age.loaded_in == loaded_in && record.age > latest.age) latest = std::move(record);
  }
  return latest;
}

int64_t latest_load_on_record(const StateArena* arena) {
  int64_t latest = -1;
  for (const FoundRecord& record : records_of_the_ended(arena)) latest = std::max(latest, record.age.loaded_in);
  return latest;
}

void take_record(std::string_view record, at::ScalarType dtype, SurvivingState& state) {
  RecordReader reader(record);
  RecordAge age;
  reader.read(age);
  int64_t dtype_then = -1;
  reader.read(dtype_then);
  COPUS_CHECK(dtype_then < 0 || dtype_then == static_cast<int64_t>(dtype),
              "the weights in memory are of another type than this process is to train in");
  state.loaded_in = age.loaded_in;
  state.moves = age.moves;
  TrainingState& training = state.at_rest.training;
  visit_numbers(reader, training, [](RecordReader& from, auto& value) { from.read(value); });
  training.data_fingerprint = reader.row();
  training.held_out_fingerprint = reader.row();
  reader.read(state.decided);
  reader.read(state.update);
  const std::string line(reader.row());
  state.record = line.empty() ? std::nullopt : std::optional(step_record_from_line(line));
  reader.read(state.at_rest.all.processes);
  int64_t ranks = 0;
  reader.read(ranks);
  std::vector<std::vector<int64_t>> addresses(ranks);
  for (std::vector<int64_t>& of_rank : addresses) reader.read(of_rank);
  COPUS_CHECK(reader.is_at_end(), "a record with more than was written");
  state.at_rest.all.addresses = StateAddresses(std::move(addresses));
  state.at_rest.mine.clear();
  state.moved.reset();
}

}  // namespace copus
