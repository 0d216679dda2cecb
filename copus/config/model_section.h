// Reads [model], whose content may stand in a config.json instead (for this room's sources only).
#pragma once

#include <string>

#include "copus/config/run_config.h"
#include "copus/config/settings.h"

namespace copus {

// Sets config.model and config.init_from from inline fields, from the file that model.config names, or from the
// config.json in the directory that model.init_from names; reads these files. Inline fields beside init_from must
// agree with that config.json (a resolved configuration has both; it stays readable when the directory is gone).
// Throws UserError where there is none of these or more than one, where a field is wrong, and where a file cannot be
// read.
void read_model_section(const Setting& root, const std::string& source, RunConfig& config);

}  // namespace copus
