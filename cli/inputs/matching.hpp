// Documents that two files hold, found by name and positions: one file may hold only a range of a document's tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "formats/cache/codes_file.hpp"
#include "formats/cache/kv_file.hpp"
#include "formats/results/index_file.hpp"

namespace kvcodec::cli {

/// What a file says about its tokens; of a file that outlives it.
struct TokenAxis {
  std::string name;  ///< of the file
  const Documents& documents;
  bool has_tokens = false;
  std::function<std::vector<uint64_t>(uint64_t first, uint64_t count)> positions;
  std::function<std::vector<uint32_t>(uint64_t first, uint64_t count)> tokens;
};
TokenAxis token_axis(const KvReader& file);
TokenAxis token_axis(const CodesReader& file);
TokenAxis token_axis(const IndexReader& file);

/// A document of another file and where its tokens stand in the original.
struct Match {
  size_t original_document = 0, other_document = 0;
  uint64_t original = 0, other = 0, count = 0;  ///< first tokens in the files, and how many there are
};

/// Finds the documents of `other` whose numbers are in `wanted` (ascending) in the original; empty ones are
/// left out. It also looks for the unwanted documents in front of the last wanted one, so that documents of
/// the same name match a different one each; these are not returned. Throws Error(bad_input) for a wanted
/// document that the original does not have, or has with other token ids.
std::vector<Match> match_documents(const TokenAxis& original, const TokenAxis& other,
                                   const std::vector<size_t>& wanted);
/// The same for all of them.
std::vector<Match> match_documents(const TokenAxis& original, const TokenAxis& other);

/// Throws Error(bad_input) unless the cache is one of the model that the codes are of, in the same state.
void check_same_model(const KvReader& kv, const CodesReader& codes);

/// Throws Error(bad_input) unless the keys of that file are as attention uses them: products of queries with
/// others are not scores.
void check_scores(const std::string& name, const ModelInfo& model);

/// check_same_model and check_scores for a cache whose queries are to meet the keys in the codes; and there
/// must be queries of these layers.
void check_queries(const KvReader& kv, const CodesReader& codes, const std::vector<int>& layers);

}  // namespace kvcodec::cli
