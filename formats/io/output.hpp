// Outputs of commands: a temporary file beside the target that is synced and renamed when complete. Nobody sees
// half a file, a killed run leaves the old one, and "-" is standard output.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "formats/io/journal.hpp"
#include "formats/io/temporary.hpp"

namespace kvcodec {

class FarFile;

/// A file in the making.
///
/// path() is where to write. commit() makes it the output: flushed to disk, renamed over the target, the
/// folder synced; for "-" the bytes are copied to standard output instead. Without commit() the destructor
/// removes it. Throws Error(failed) naming the target and the system's reason: a folder that is not there, no
/// permission, a full disk; and Error(usage) for a target that exists when overwriting was not asked for, or
/// for a terminal as standard output. A symbolic link is followed, an overwritten file's permissions are
/// kept, and its group where that is permitted; a device or pipe is written to, not replaced.
class OutputFile {
 public:
  /// left_over: of this output's folder, if it is known.
  OutputFile(std::string target, bool overwrite, LeftOver* left_over = nullptr);
  /// The target is there, held, and is changed in place (formats/io/journal.hpp): path() is the file itself, commit() makes the change.
  /// Throws Error(failed) where the name leads to another file than the one that is held, or that was changed.
  OutputFile(std::string target, const HeldFile& held);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::filesystem::path& path() const { return in_place_ ? final_ : temporary_->path(); }
  const std::string& target() const {
    return target_;
  }  ///< for messages: the name given, or "standard output"
  /// The target must still be in this state when the output replaces it: commit() throws Error(failed) where another
  /// run replaced it meanwhile, whose work would be lost.
  void replaces(const FileState& read) { replaced_ = read; }
  void commit();
  /// The change that is made in place; nullptr where a new file is written.
  InPlace* in_place() const { return in_place_.get(); }

 private:
  enum class Kind { regular, standard_output, special };
  void copy_to_stream();
  void replace_target();

  std::string target_;
  bool overwrite_ = false;
  Kind kind_ = Kind::regular;
  std::filesystem::path final_;  // the target, symbolic links followed
  std::unique_ptr<TemporaryFile> temporary_;
  std::optional<FileState> replaced_;
  std::unique_ptr<InPlace> in_place_;
  bool committed_ = false;
};

/// A file to read; "-" is standard input, copied to an unnamed temporary file first, because HDF5 must seek.
/// All InputFiles of "-" in a process see that one copy. A URL is a file on a server (formats/io/byte_source.hpp).
/// Throws Error(bad_input) naming the file: not there, a folder, not readable, not HDF5.
class InputFile {
 public:
  explicit InputFile(std::string name);
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::filesystem::path& path() const { return path_; }  ///< what to open
  const std::string& name() const {
    return name_;
  }  ///< what to call it in messages: the name given, or "standard input"
  /// The file on a server; nullptr for one that is here.
  FarFile* far() const { return far_.get(); }
  int descriptor() const { return file_.get(); }  ///< open for reading; -1 for a file on a server

 private:
  std::string name_;
  std::filesystem::path path_;
  std::shared_ptr<FarFile> far_;
  Descriptor file_;
};

}  // namespace kvcodec
