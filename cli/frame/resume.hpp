// --resume: a command that was interrupted by a kill, a full disk or a reboot continues where it stopped.
//
// The output is made in pieces, runs of whole documents. Each piece is a file of the output's type in the folder OUTPUT.pieces,
// which is complete or absent. A later run of the same command keeps the pieces that are complete and not older than its inputs,
// makes the others, joins all of them into the output like kvcodec cat, and removes the folder.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/frame/common.hpp"
#include "formats/cache/header.hpp"
#include "formats/io/output.hpp"

namespace kvcodec::cli {

struct ResumeOptions {
  bool resume = false;
  std::string piece = "256M";

  void declare(Command& command);
  /// Throws Error(usage) for an output or inputs on standard streams, which a later run cannot read again, and for --piece without
  /// --resume.
  void check(const Command& command, const OutputOptions& output,
             const std::vector<std::string>& inputs) const;
  /// Bytes of cache in a piece. Throws Error(usage) for an invalid size.
  uint64_t piece_bytes() const { return parse_size("--piece", piece); }
};

/// Items [first, end) of the work.
struct WorkRange {
  size_t first = 0, end = 0;
};
/// Cuts items into non-empty runs: each ends with the item that brings it to `piece` bytes. bytes: of each item.
std::vector<WorkRange> cut_work(std::span<const uint64_t> bytes, uint64_t piece);

/// The contents of one file in the folder.
struct Piece {
  WorkRange items;
  Documents documents;
};

/// The pieces of one output, in its order; at least one.
class Pieces {
 public:
  /// model: that of the output. inputs: files that the command reads. An existing piece is kept if why_other() finds no objection
  /// and it holds these documents of this model: the same digests of token ids, if they are known. A note says how many are kept.
  Pieces(const Command& command, const CommonOptions& common, const OutputOptions& output,
         const std::vector<std::string>& inputs, const ModelInfo& model, std::vector<Piece> pieces);

  /// Makes the missing pieces, one after the other, and then writes the documents of all to `output`. make: writes a piece's
  /// documents, with updates of `bar` that count its tokens. An error is rethrown, with a note on how to continue.
  using MakePiece = std::function<void(const WorkRange& items, OutputFile& piece)>;
  void write(const MakePiece& make, ProgressBar& bar, OutputFile& output);
  /// A finished piece that has tokens, if there is one.
  std::optional<std::string> finished() const {
    for (size_t i = 0; i < pieces_.size(); ++i)
      if (finished_[i] && pieces_[i].documents.tokens() > 0) return file_of(pieces_[i]);
    return std::nullopt;
  }
  /// Call it when the output is complete. The folder stays if it holds anything but pieces.
  void remove() const;

 private:
  std::string file_of(const Piece& piece) const;
  void make_missing(const MakePiece& make, ProgressBar& bar);
  void join(OutputFile& output) const;

  const CommonOptions* common_;
  std::string folder_;
  std::vector<Piece> pieces_;
  std::vector<bool> finished_;  // of pieces_
};

}  // namespace kvcodec::cli
