#include "copus/description/config_fields.h"

#include "copus/base/text/json_text.h"

namespace copus {

namespace {

// Throws UserError with the position if the text is not JSON.
nlohmann::json parse_json(std::string_view text, const std::string& source) {
  if (nests_too_deeply(text)) {
    throw UserError(concat(source, ": is nested too deeply; expected a Hugging Face config.json"));
  }
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    // nlohmann counts bytes from 1, and reports the position after the last byte read.
    const std::string_view before = text.substr(0, std::min(text.size(), error.byte > 0 ? error.byte - 1 : 0));
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const size_t column = before.size() - (before.rfind('\n') + 1) + 1;  // npos + 1 is 0
    throw UserError(concat(source, ":", line, ":", column, ": not valid JSON; expected a Hugging Face config.json"));
  } catch (const nlohmann::json::out_of_range&) {  // this error states the number but not its position
    throw UserError(concat(source, ": holds a number beyond the range of double precision"));
  }
}

}  // namespace

std::string describe(const nlohmann::json& value) {
  constexpr size_t longest = 60;
  std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > longest) text = text.substr(0, longest) + "...";
  return value.is_number() || value.is_null() ? text : concat("the ", value.type_name(), " ", text);
}

nlohmann::json parse_config_object(std::string_view text, const std::string& source) {
  nlohmann::json json = parse_json(text, source);
  if (json.is_object()) return json;
  throw UserError(concat(source, ": must be a JSON object (a Hugging Face config.json), got ", describe(json)));
}

}  // namespace copus
