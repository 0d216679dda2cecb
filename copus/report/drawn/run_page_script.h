// run_page.js, which draws the page of runs, built into the program.
#pragma once

namespace copus {

extern const char* const run_page_js;

}  // namespace copus
