// Reads [model], whose content may stand in a config.json instead (only this room's sources include this header).
#pragma once

#include <string>

#include "copus/config/run_config.h"
#include "copus/config/settings.h"

namespace copus {

// Sets config.model and config.init_from from inline fields, from the file that model.config names, or from the
// config.json in the directory that model.init_from names; reads these files. Inline fields beside init_from must agree
// with that config.json (a resolved configuration has both, so that it stays readable when the directory is gone).
// Throws UserError where none of these is given or more than one, where a field is wrong, and where a file cannot be
// read.
void read_model_section(const Setting& root, const std::string& source, RunConfig& config);

// Makes a description from a table of inline fields, by the rules of config.json, whose fields they are. `where` names
// the table in messages. Throws UserError where a field is wrong or missing.
ModelDescription describe_inline_model(const Setting& table, Architecture architecture, const std::string& where);

}  // namespace copus
