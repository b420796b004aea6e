// The heavy steps of lib/rvq/train.hpp by several ranks, all of which have all rows: each takes its share of the rows
// where rows are searched for, and its share of the entries where the rows of an entry are added up.
#pragma once

#include <memory>

#include "lib/core/team.hpp"
#include "lib/rvq/train.hpp"

namespace kvcodec {

/// For train_codebooks(), which every rank then calls alike. The same bits as without it. The team outlives it.
std::unique_ptr<RvqTrainEngine> rvq_training_of(const Team& team);

}  // namespace kvcodec
