// Represents the state of a controller as a list of values, so that a resumed run need not repeat all of its steps.
// Each class lists its members once, in a function visit_state(StateValues&), which both writes and reads them.
#pragma once

#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "copus/description/parallel_strategy.h"
#include "copus/performance/measured/learning.h"

namespace copus {

struct LossPoint;
struct MeasuredCriticalBatch;
struct NormObservation;
struct Observation;
struct Realised;
struct SwitchIntent;

class StateValues {
 public:
  // Writes: visiting a member appends its value.
  StateValues() = default;
  // Reads: visiting a member takes the next value. Every value must outlive this object.
  explicit StateValues(const std::vector<std::string>& values) : read_(&values) {}

  bool is_reading() const { return read_ != nullptr; }

  // Writes or reads members in this order. Numbers keep every bit; a NaN reads back as some NaN. Throws UserError if a
  // value is missing or of the wrong type.
  template <class... Members>
  void operator()(Members&... members) {
    (visit(members), ...);
  }

  // Writes or reads the measurements of steps; reading makes the knowledge from them and this prior.
  void visit_knowledge(Knowledge& knowledge, const FactorPrior& prior);

  // Writes a fact that follows from the settings, or compares it with the written one. Throws UserError if they differ.
  void require(int64_t fact);

  // The values written.
  const std::vector<std::string>& written() const { return written_; }
  // Throws UserError if values are left to read.
  void require_end() const;

 private:
  template <std::integral Integer>
  void visit(Integer& value) {
    if (is_reading()) {
      value = parse<Integer>();
    } else {
      written_.push_back(std::to_string(value));
    }
  }
  template <class Enum>
    requires std::is_enum_v<Enum>
  void visit(Enum& value) {
    auto number = static_cast<int64_t>(value);
    visit(number);
    value = static_cast<Enum>(number);
  }
  void visit(bool& value);
  void visit(double& value);
  void visit(std::string& value);
  void visit(Configuration& value);
  void visit(ParallelStrategy& value);
  void visit(Observation& value);
  void visit(LossPoint& value);
  void visit(MeasuredCriticalBatch& value);
  void visit(NormObservation& value);
  void visit(Measurement& value);
  void visit(MeasuredCell& value);
  void visit(Corrected& value);
  void visit(Realised& value);
  void visit(SwitchIntent& value);
  template <class Member>
    requires requires(Member& member, StateValues& values) { member.visit_state(values); }
  void visit(Member& value) {
    value.visit_state(*this);
  }
  template <class Value>
  void visit(std::optional<Value>& value) {
    bool is_there = value.has_value();
    visit(is_there);
    if (!is_there) {
      value.reset();
    } else {
      if (!value) value.emplace();
      visit(*value);
    }
  }
  template <class First, class Second>
  void visit(std::pair<First, Second>& value) {
    (*this)(value.first, value.second);
  }
  template <class Value>
  void visit(std::vector<Value>& values) {
    visit_sequence<Value>(values);
  }
  template <class Value>
  void visit(std::deque<Value>& values) {
    visit_sequence<Value>(values);
  }
  template <class Value>
  void visit(std::set<Value>& values) {
    visit_sequence<Value>(values);
  }
  template <class Key, class Value>
  void visit(std::map<Key, Value>& values) {
    visit_sequence<std::pair<Key, Value>>(values);
  }

  template <class Value, class Sequence>
  void visit_sequence(Sequence& values) {
    auto count = static_cast<int64_t>(values.size());
    visit(count);
    if (!is_reading()) {
      for (const auto& value : values) {
        Value copy(value);
        visit(copy);
      }
      return;
    }
    values.clear();
    for (int64_t i = 0; i < count; ++i) {
      Value value{};
      visit(value);
      values.insert(values.end(), std::move(value));
    }
  }

  template <class Number>
  Number parse() {
    const std::string& text = next();
    Number value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) refuse(text);
    return value;
  }
  const std::string& next();
  [[noreturn]] void refuse(const std::string& value) const;

  const std::vector<std::string>* read_ = nullptr;
  size_t place_ = 0;  // of the next value to read
  std::vector<std::string> written_;
};

}  // namespace copus
