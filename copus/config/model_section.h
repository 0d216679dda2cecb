// Reads the section [model] or the config.json that it names. Only sources of this room include this header.
#pragma once

#include <string>

#include "copus/config/run_config.h"
#include "copus/config/settings.h"

namespace copus {

// Sets config.model and config.init_from from inline fields, from the file that model.config names, or from the
// config.json in the folder that model.init_from names. Throws UserError if none or several sources are given, if a
// field is wrong, or if a file cannot be read. A resolved configuration has both init_from and inline fields, so that
// it stays readable after the folder is deleted; these inline fields must agree with the folder's config.json.
void read_model_section(const Setting& root, const std::string& source, RunConfig& config);

// Makes a description from a table of inline fields, which follow the names and rules of config.json. `where` names the
// table in messages. Throws UserError if a field is wrong or missing.
ModelDescription describe_inline_model(const Setting& table, Architecture architecture, const std::string& where);

}  // namespace copus
