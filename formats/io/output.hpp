// Outputs of commands: a temporary file beside the target that is synced and renamed when it is complete. Nobody sees half a file,
// a killed run leaves the old one, and "-" is standard output.
#pragma once

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "formats/io/journal.hpp"
#include "formats/io/temporary.hpp"

namespace kvcodec {

class FarFile;

/// A file that is being written.
///
/// path() is where to write. commit() makes it the output: flushed to disk, renamed over the target, the folder synced; for "-" the
/// bytes are copied to standard output instead. Without commit() the destructor removes it. Throws Error(failed) naming the target
/// and the system's reason: a missing folder, no permission, a full disk; and Error(usage) for a target that exists if overwriting
/// was not requested, also as a link to nothing, or for a terminal as standard output. A symbolic link is followed; an overwritten
/// file's permissions are kept, and its group if that is permitted; a device or pipe is written to, not replaced.
class OutputFile {
 public:
  /// left_over: temporary files in this output's folder, if they are known.
  OutputFile(std::string target, bool overwrite, LeftOver* left_over = nullptr);
  /// Changes an existing, held target in place (formats/io/journal.hpp): path() is the file itself, commit() makes the change. Throws
  /// Error(failed) if the name leads to another file than the held one, or to one that was changed.
  OutputFile(std::string target, const HeldFile& held)
      : target_(std::move(target)), final_(behind_links(target_)) {
    LeftOver().remove_of(final_);
    in_place_ = std::make_unique<InPlace>(final_, target_);
    // By now the name may lead to another file than the held one.
    if (state_of(in_place_->descriptor()) != held.state()) throw changed_meanwhile(target_);
  }
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::filesystem::path& path() const { return in_place_ ? final_ : temporary_->path(); }
  const std::string& target() const { return target_; }  ///< for messages: its name, or "standard output"
  /// Requires that the target is still in this state when the output replaces it: commit() throws Error(failed) if another run
  /// replaced it meanwhile, because the work of that run would be lost.
  void replaces(const FileState& read) { replaced_ = read; }
  void commit();
  /// The change that is made in place; nullptr if a new file is written.
  InPlace* in_place() const { return in_place_.get(); }

 private:
  enum class Kind { regular, standard_output, special };
  void copy_to_stream();

  std::string target_;
  bool overwrite_ = false;
  Kind kind_ = Kind::regular;
  std::filesystem::path final_;  // the target, symbolic links followed
  std::unique_ptr<TemporaryFile> temporary_;
  std::optional<FileState> replaced_;
  std::unique_ptr<InPlace> in_place_;
  bool committed_ = false;
};

/// A file to read; "-" is standard input, copied to an unnamed temporary file first, because HDF5 must seek. All InputFiles of "-"
/// in a process share that copy. A URL is a file on a server (formats/io/byte_source.hpp). Throws Error(bad_input) naming the file
/// if it does not exist, cannot be opened, or is not a regular file, and Error(usage) for a terminal as standard input.
class InputFile {
 public:
  explicit InputFile(std::string name);
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::filesystem::path& path() const { return path_; }  ///< what to open
  const std::string& name() const { return name_; }  ///< for messages: its name, or "standard input"
  FarFile* far() const { return far_.get(); }        ///< nullptr for a local file
  int descriptor() const { return file_.get(); }     ///< open for reading; -1 for a file on a server

 private:
  std::string name_;
  std::filesystem::path path_;
  std::shared_ptr<FarFile> far_;
  Descriptor file_;
};

}  // namespace kvcodec
