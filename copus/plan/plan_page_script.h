// The text of plan_page.js, which draws the page of a plan, compiled into the program.
#pragma once

namespace copus {

extern const char* const plan_page_js;

}  // namespace copus
