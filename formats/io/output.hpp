// Where products go: a temporary file beside the target that is synced and renamed when complete. Nobody sees
// half a file, a killed run leaves the old one, and "-" is standard output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

struct stat;

namespace kvcodec {

class FarFile;
class InPlace;

/// Installs signal handlers; for main(), once. SIGINT, SIGTERM, SIGHUP and SIGPIPE remove the temporary files
/// of all OutputFiles, and then end the process as usual. SIGBUS, which means that a mapped file was
/// shortened, removes them too; the program then prints that file's name and exits with status 1. SIGXFSZ is
/// ignored, so that a write beyond the file size limit is an ordinary write error.
void install_signal_cleanup();

/// The file that a name finally leads to, through symbolic links.
std::filesystem::path behind_links(const std::filesystem::path& name);

/// Gives a file the permissions of another one, whatever the umask, and its group where that is permitted. False if the
/// permissions cannot be set.
bool take_rights(const std::filesystem::path& path, const struct stat& of);

/// Where temporary files go that belong beside no other: TMPDIR, or /tmp.
std::filesystem::path temporary_folder();

/// Which file a name led to, and its state: any of these is another once the file was replaced or changed.
struct FileState {
  uint64_t device = 0, number = 0, size = 0;
  int64_t seconds = 0, nanoseconds = 0;  ///< of the last change
  bool operator==(const FileState&) const = default;
};
/// Of the file that a name leads to now; nothing if there is none.
std::optional<FileState> state_of(const std::filesystem::path& name);

/// A file that is read and that what is made of it then replaces: held, so that two runs that add to the same file
/// take turns and neither loses what the other added. Readers are not kept out.
class HeldFile {
 public:
  /// waiting() is called once if another run holds the file, or on NFS a program that reads it by HDF5, before this one waits for it. Where the file system
  /// knows no locks, or the file may not be written to, it is not held; OutputFile::replaces still finds what changed.
  /// Throws Error(bad_input) naming the file if it cannot be opened.
  HeldFile(const std::string& name, const std::function<void()>& waiting);
  ~HeldFile();
  HeldFile(const HeldFile&) = delete;
  HeldFile& operator=(const HeldFile&) = delete;

  const FileState& state() const { return state_; }  ///< when it was held
  /// Whether it can be changed in place: it is a regular file, and its file system knows locks.
  bool changeable() const { return locked_; }

 private:
  int descriptor_ = -1;
  bool locked_ = false;
  FileState state_;
};

/// Temporary files that killed runs left in the folders of products. Folders are listed once: who writes very many files into one
/// passes the same object to all of them.
class LeftOver {
 public:
  /// Removes what is left of this product and of its journal.
  void remove_of(const std::filesystem::path& product);

 private:
  std::map<std::filesystem::path, std::vector<std::string>>
      temporaries_;  // of each folder, whoever's they are
};

/// A file in the making.
///
/// path() is where to write. commit() makes it the product: flushed to disk, renamed over the target, the
/// folder synced; for "-" the bytes are copied to standard output instead. Without commit() the destructor
/// removes it. Throws Error(failed) naming the target and the system's reason: a folder that is not there, no
/// permission, a full disk; and Error(usage) for a target that exists when overwriting was not asked for, or
/// for a terminal as standard output. A symbolic link is followed, an overwritten file's permissions are
/// kept, and its group where that is permitted; a device or pipe is written to, not replaced.
class OutputFile {
 public:
  /// left_over: of this product's folder, if it is known.
  OutputFile(std::string target, bool overwrite, LeftOver* left_over = nullptr);
  /// The target is there, held, and is changed in place (formats/io/journal.hpp): path() is the file itself, commit() makes the change.
  /// Throws Error(failed) where the name leads to another file than the one that is held, or that was changed.
  OutputFile(std::string target, const HeldFile& held);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::filesystem::path& path() const { return temporary_; }
  const std::string& target() const {
    return target_;
  }  ///< for messages: the name given, or "standard output"
  /// The target must still be in this state when the product replaces it: commit() throws Error(failed) where another
  /// run replaced it meanwhile, whose work would be lost.
  void replaces(const FileState& read) { replaced_ = read; }
  void commit();
  /// The change that is made in place; nullptr where a new file is written.
  InPlace* in_place() const { return in_place_.get(); }

 private:
  enum class Kind { regular, standard_output, special, changed };
  void copy_to_stream();
  void replace_target();

  std::string target_;
  bool overwrite_ = false;
  Kind kind_ = Kind::regular;
  std::filesystem::path final_;  // the target, symbolic links followed
  std::filesystem::path temporary_;
  std::optional<FileState> replaced_;
  std::unique_ptr<InPlace> in_place_;
  bool committed_ = false;
};

/// A temporary file without a name, gone with the process, in the folder of `beside`. Throws Error(failed)
/// naming `target`.
class UnnamedFile {
 public:
  UnnamedFile(const std::filesystem::path& beside, std::string target);
  ~UnnamedFile();
  UnnamedFile(const UnnamedFile&) = delete;
  UnnamedFile& operator=(const UnnamedFile&) = delete;

  void write(uint64_t position, std::span<const std::byte> bytes);
  void read(uint64_t position, std::span<std::byte> out) const;

 private:
  std::string target_;
  int descriptor_ = -1;
};

/// A file to read; "-" is standard input, copied to an unnamed temporary file first, because HDF5 must seek.
/// All InputFiles of "-" in a process see that one copy. A URL is a file on a server (formats/io/far_file.hpp).
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
  /// The file on a server; nullptr for one that is here.
  FarFile* far() const { return far_.get(); }
  int descriptor() const { return descriptor_; }  ///< open for reading; -1 for a file on a server

 private:
  std::string name_;
  std::filesystem::path path_;
  std::shared_ptr<FarFile> far_;
  int descriptor_ = -1;
};

}  // namespace kvcodec
