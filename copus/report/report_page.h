// The page that html_report.cpp fills in: report_page.html, built into the program.
#pragma once

namespace copus {

const char* report_page();

}  // namespace copus
