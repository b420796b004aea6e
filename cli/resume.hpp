// --resume: a command that a kill, a full disk or a reboot stopped goes on where it was.
//
// The product is made in pieces, runs of whole documents. Each piece is a file of the product's type in the folder
// OUTPUT.pieces, complete or not there. A later run of the same command keeps the pieces that are whole and not older
// than its inputs, makes the others, joins all of them into the output as kvcodec cat does, and removes the folder.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cli/common.hpp"
#include "formats/output.hpp"

namespace kvcodec::cli {

/// The options.
struct ResumeOptions {
  bool resume = false;
  std::string piece = "256M";

  void declare(Command& command);
  /// Throws Error(usage) for an output or inputs on standard streams, which a later run cannot read again, and for
  /// --piece without --resume.
  void check(const Command& command, const OutputOptions& output,
             const std::vector<std::string>& inputs) const;
  /// Bytes of cache in a piece. Throws Error(usage) for what is no size.
  uint64_t piece_bytes() const;
};

/// Items [first, end) of the work, which make one piece.
struct WorkRange {
  size_t first = 0, end = 0;
};
/// Cuts items into runs, none of them empty: each ends with the item that brings it to `piece` bytes. bytes: of each item.
std::vector<WorkRange> cut_work(std::span<const uint64_t> bytes, uint64_t piece);

/// The pieces of one product.
class Pieces {
 public:
  /// inputs: files that the command reads. Looks which pieces are there, and says so in a note.
  Pieces(const Command& command, const CommonOptions& common, const OutputOptions& output,
         const std::vector<std::string>& inputs, std::vector<WorkRange> ranges);

  /// The ranges of the pieces that are not there yet.
  std::span<const WorkRange> missing() const { return missing_; }
  /// Makes the missing ones in turn; make: writes the documents of a range. What fails here and in join() is thrown on,
  /// with a note on how to go on.
  void complete(const std::function<void(const WorkRange& range, OutputFile& piece)>& make) const;
  /// Writes the documents of all pieces.
  void join(OutputFile& output, const Provenance& provenance) const;
  /// For when the output stands in its place. What is in the folder but no piece stays, and so does the folder then.
  void remove() const;

 private:
  std::string file_of(const WorkRange& range) const;
  void make_missing(const std::function<void(const WorkRange& range, OutputFile& piece)>& make) const;
  template <class Work>
  void with_note(const Work& work) const;

  const CommonOptions* common_;
  std::string folder_;
  std::vector<WorkRange> ranges_, missing_;
};

}  // namespace kvcodec::cli
