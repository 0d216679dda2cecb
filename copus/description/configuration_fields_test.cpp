// Tests that the list of fields has every member of a configuration, and that all code that iterates over the list
// works.
#include "copus/description/configuration_fields.h"

#include <gmock/gmock.h>

#include <set>

#include "copus/description/configuration_text.h"

namespace copus {
namespace {

// Converts to any type, to initialise any member.
struct Anything {
  template <class Member>
  constexpr operator Member() const;  // NOLINT(google-explicit-constructor)
};

// Counts the members of an aggregate.
template <class Aggregate, class... Members>
constexpr size_t count_members() {
  if constexpr (requires { Aggregate{Members{}..., Anything{}}; }) {
    return count_members<Aggregate, Members..., Anything>();
  } else {
    return sizeof...(Members);
  }
}

// Does not count `strategy` as a field, since its own fields are listed.
static_assert(count_members<ParallelStrategy>() == num_strategy_fields,
              "a member of ParallelStrategy is missing in visit_strategy");
static_assert(count_members<Configuration>() - 1 + num_strategy_fields == num_configuration_fields,
              "a member of Configuration is missing in visit_batches");

// Sets a value that differs from the default and from the values of all other fields.
void change(const ConfigurationField& field, int64_t& value) {
  value = field.range.contains(10) ? 10 + static_cast<int64_t>(field.index) : field.range.high;
}
void change(const ConfigurationField&, bool& value) { value = !value; }
template <HasNames Enum>
void change(const ConfigurationField&, Enum& value) {
  value = all_values<Enum>().back();
}

// Returns one configuration for each field, in which only this field differs from its default.
std::vector<Configuration> one_changed() {
  std::vector<Configuration> changed(num_configuration_fields);
  for (size_t i = 0; i < changed.size(); ++i) {
    visit_configuration(
        [i](const ConfigurationField& field, auto& value) {
          if (field.index == i) change(field, value);
        },
        changed[i]);
  }
  return changed;
}

TEST(ConfigurationFields, EachIsAnotherMemberWithNamesOfItsOwn) {
  const Configuration configuration;
  std::set<const void*> members;
  std::set<std::string> symbols, keys;
  size_t index = 0;
  visit_configuration(
      [&](const ConfigurationField& field, const auto& value) {
        EXPECT_EQ(field.index, index++);
        members.insert(&value);
        symbols.insert(field.symbol);
        keys.insert(concat(field.section, ".", field.name));
      },
      configuration);
  EXPECT_EQ(members.size(), num_configuration_fields);
  EXPECT_EQ(symbols.size(), num_configuration_fields);
  EXPECT_EQ(keys.size(), num_configuration_fields);
}

TEST(ConfigurationFields, WordsAndTextHoldEachOfThem) {
  for (const Configuration& configuration : one_changed()) {
    ASSERT_NE(configuration, Configuration());
    EXPECT_EQ(configuration_of_words(to_words(configuration)), configuration);
    EXPECT_NE(to_words(configuration), to_words(Configuration()));
    EXPECT_EQ(parse_configuration(to_string(configuration)), configuration) << to_string(configuration);
    EXPECT_NE(describe_change(Configuration(), configuration), "");
  }
}

}  // namespace
}  // namespace copus
