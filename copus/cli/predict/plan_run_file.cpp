#include "copus/cli/predict/plan_run_file.h"

#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"
#include "copus/base/text/shell_word.h"
#include "copus/base/text/units.h"
#include "copus/config/settings.h"
#include "copus/plan/paste_text.h"
#include "copus/plan/plan_report.h"

namespace copus {

void check_run_file(const std::filesystem::path& path, const PlanQuestion& question) {
  const std::string option = concat("--write ", path.string());
  if (question.tokens == 0) {
    throw UserError(
        concat(option, ": the run needs an end; say how many tokens it is to see, for example --tokens 300B"));
  }
  if (question.space.global_batches.size() > 1) {
    throw UserError(concat(option, ": a run starts at one batch, and the plan is of ",
                           question.space.global_batches.size(), "; choose one, for example --global-batch ",
                           question.space.global_batches.front()));
  }
  if (question.program != PlannedSystem::copus) {
    throw UserError(concat(option, ": only a run of Copus can be written, and the plan is for ",
                           full_name(question.program), ", whose settings are printed; leave one of the two out"));
  }
  std::error_code unknown;
  if (std::filesystem::exists(std::filesystem::symlink_status(path, unknown))) {
    throw UserError(concat(option, ": there is such a file; give another name, or move it away"));
  }
}

void write_run_file(const std::filesystem::path& path, const std::string& model, const PlanQuestion& question,
                    const PlannedConfiguration& planned) {
  const TrainingTime time = training_time(question, planned);
  const OptimizerKind optimizer = question.system.optimizer;
  const std::string text = concat(
      "# ", title_of(question), ".\n# Planned: ", with_commas(time.steps), " steps of ",
      seconds_in_words(planned.seconds), ", ", format_duration(time.days * 86400), " (+- ",
      format_number("%.0f %%", 100 * planned.relative_deviation), ").\n# Name your data below, or start it by ",
      "`copus train ", shell_word(path.string()), " --set data.train=DATA`. What else may stand here,\n",
      "# the learning rate (optimizer.lr) above all, has the defaults of docs/configuration.md.\n\n",
      "[model]\nconfig = ", quote(model), "\n\n[data]\ntrain = \"PUT-THE-PATH-OF-YOUR-DATA-HERE\"  ",
      "# a text file, or the prefix of a Megatron .bin/.idx pair\n", "mask_across_documents = true\n\n",
      optimizer == OptimizerKind::adamw ? "" : concat("[optimizer]\nkind = ", quote(to_string(optimizer)), "\n\n"),
      paste_texts(question, planned.configuration).front().text, "max_tokens = ", question.tokens,
      "\n# device = \"cuda\"  # take this line in to train on GPUs; without it processors train\n");
  try {
    write_file_durably(path, text);
  } catch (const UserError& error) {
    throw UserError(concat("--write: ", error.what(), "; expected a file in a folder that there is, to be written"));
  }
}

}  // namespace copus
