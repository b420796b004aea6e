// The attribute `scores` of kv and codes files (FORMAT.md, "Scores").
#pragma once

#include <string>

#include "formats/cache/header.hpp"
#include "lib/attention/score_forms.hpp"

namespace kvcodec {

/// Those of ModelInfo::scores. Throws Error(bad_input), beginning with "attribute 'scores'", for an invalid text.
ScoreForms score_forms(const ModelInfo& model);
/// The attribute; empty if nothing is known.
std::string text_of(const ScoreForms& forms);

}  // namespace kvcodec
