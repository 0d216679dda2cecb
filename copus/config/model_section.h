// Reads the section [model], whose content may also be in a config.json. Only sources of this room include this header.
#pragma once

#include <string>

#include "copus/config/run_config.h"
#include "copus/config/settings.h"

namespace copus {

// Sets config.model and config.init_from. They come from inline fields, from the file that model.config names, or from
// the config.json in the directory that model.init_from names; this function reads these files. Inline fields next to
// init_from must agree with that config.json. A resolved configuration has both, so that it stays readable when the
// directory is gone. Throws UserError if none or more than one of these sources is given, if a field is wrong, or if a
// file cannot be read.
void read_model_section(const Setting& root, const std::string& source, RunConfig& config);

// Makes a description from a table of inline fields, which have the names and rules of config.json. `where` names the
// table in messages. Throws UserError if a field is wrong or missing.
ModelDescription describe_inline_model(const Setting& table, Architecture architecture, const std::string& where);

}  // namespace copus
