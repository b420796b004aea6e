// What says which tokens queries attend to: the same options in select, eval-model and the words of its settings.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/core/options.hpp"
#include "lib/pipeline/selection_rule.hpp"

namespace kvcodec::cli {

/// Where the values come from that are not given: from what is best on SmolLM2-135M (data/experiments/README.md,
/// "selection"), or from the paper of the method.
enum class SelectionSetup : uint8_t { best, paper };
constexpr auto names_of(SelectionSetup) { return std::to_array<std::string_view>({"best", "paper"}); }

struct SelectionOptions final : Options {
  SelectBy by = SelectBy::codes;
  SelectionSetup setup = SelectionSetup::best;
  Share share = Share::weight;  ///< scores of query heads differ in scale, weights do not
  int64_t budget = 0;
  double ratio = 0, mass = 0;
  int64_t first = 4;       ///< most attention of many heads lies on the very first token
  int64_t newest = 4;      ///< as few as that: of more, products find those that count
  int64_t heavy = 0;       ///< candidates find them
  int64_t candidates = 4;  ///< products with few keys mend what scores get wrong
  std::string dense_layers = std::string(kFirstTwo);  ///< as in Quest and ClusterKV: their attention is broad

  static constexpr std::string_view kFirstTwo = "0-1";

  /// What holds where nothing but these two is given.
  static SelectionOptions of(SelectBy by, SelectionSetup setup);

  std::vector<OptionField> fields() override;
  /// The same for a model that goes on: `by` is called `select`, and may be all.
  std::vector<OptionField> step_fields();
  void check() const override;

  /// Of a model of so many layers. Throws Error(usage) for dense layers that are not a list, or not in the model.
  SelectionRule rule(int layers) const;
};

/// Values by the names of fields.
using GivenFields = std::vector<std::pair<std::string, Scalar>>;

}  // namespace kvcodec::cli
