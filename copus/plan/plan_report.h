// The output of `copus plan`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "copus/plan/plan.h"
#include "copus/plan/plan_explain.h"

namespace copus {

// With one batch, shows the `top` fastest layouts with their time and memory by part, and the fastest layout in the
// notation of the program that will train. With several batches, shows the fastest layout of each batch, and where the
// fastest layout changes.
std::string to_text(const PlanQuestion& question, const Plan& plan, int64_t top);

// Writes a paragraph for each batch, with the program's notation for configurations that fit.
std::string to_text(const PlanQuestion& question, const std::vector<Explanation>& explanations);

// Writes one object (docs/plan.md) without a line end: the `top` fastest layouts of every batch, the crossovers and the
// explanations.
std::string to_json(const PlanQuestion& question, const Plan& plan, int64_t top,
                    const std::vector<Explanation>& explanations);

// Returns the notes below the tables: the meaning of +-, and how much the times and memory of published runs differed
// from predictions. Each note is one line without a line end.
std::string doubt_about_times(const PlanQuestion& question);
std::string doubt_about_memory();

// "llama-3.2-3b on 8 x H100 SXM 80GB, sequences of 2048, bf16"
std::string title_of(const PlanQuestion& question);
// "41.2 %", or "n/a" if the peak is unknown.
std::string utilization_text(double model_flops_utilization);
// "12,345". The number is not negative.
std::string with_commas(double number);

}  // namespace copus
