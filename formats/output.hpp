// Where products go: a temporary file beside the target that is synced and renamed when complete. Nobody sees
// half a file, a killed run leaves the old one, and "-" is standard output.
#pragma once

#include <filesystem>
#include <string>

namespace kvcodec {

/// A file in the making.
///
/// path() is where to write. commit() makes it the product: flushed to disk, renamed over the target, the
/// folder synced; for "-" the bytes are copied to standard output instead. Without commit() the destructor
/// removes it. Throws Error(failed) naming the target and the system's reason: a folder that is not there, no
/// permission, a full disk; and Error(usage) for a target that exists when overwriting was not asked for, or
/// for a terminal as standard output.
class OutputFile {
 public:
  OutputFile(std::string target, bool overwrite);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::filesystem::path& path() const { return temporary_; }
  const std::string& target() const { return target_; }
  void commit();

 private:
  std::string target_;
  std::filesystem::path temporary_;
  bool committed_ = false;
};

/// A file to read; "-" is standard input, copied to an unnamed temporary file first, because HDF5 must seek.
/// Throws Error(bad_input) naming the file: not there, a folder, not readable, not HDF5.
class InputFile {
 public:
  explicit InputFile(std::string name);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::filesystem::path& path() const { return path_; }  ///< what to open
  const std::string& name() const {
    return name_;
  }  ///< what to call it in messages: the name given, or "standard input"

 private:
  std::string name_;
  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace kvcodec
