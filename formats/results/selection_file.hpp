// `selection` files: which tokens were selected for which query (FORMAT.md, "selection").
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "formats/cache/header.hpp"
#include "formats/io/output.hpp"
#include "lib/core/record.hpp"
#include "lib/linalg/topk.hpp"

namespace kvcodec {

/// Stands in place of a token where fewer were selected than the row has room for.
inline constexpr uint32_t kNoToken = 0xffffffff;

/// What was selected in one layer: for each query (row of the kv file) and each head, best first. Token ids
/// count within the query's document.
struct LayerSelections {
  std::vector<std::vector<Scored>> chosen;  ///< (queries, heads), row by row
};

struct SelectionInfo {
  ModelInfo model;
  Record parameters;                 ///< how they were selected
  size_t heads = 0;                  ///< selections per query: key/value heads, or query heads
  std::vector<uint64_t> query_rows;  ///< the row of the kv file of each query
  Documents documents;               ///< of the queries, one behind the other
};

void write_selections(OutputFile& output, const SelectionInfo& info,
                      const std::map<int, LayerSelections>& layers, const Provenance& provenance);

/// Everything except the selections themselves, and how many a row has room for.
struct SelectionFile {
  FileType type;
  SelectionInfo info;
  std::map<int, uint64_t> budgets;  ///< of the layers there are
};
SelectionFile read_selection_info(const std::string& file);

/// The selections of one layer. Throws Error(bad_input) for one that is not there, and for scores that are no
/// numbers.
LayerSelections read_selections(const std::string& file, int layer);

}  // namespace kvcodec
